/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* Simulated libnvidia-ml of the gpufleet.vllm lab, not NVIDIA's: memory, processes, modes, clocks, power, errors. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MIB (1024ULL * 1024ULL)

/* ---- processes ---- */

static double number_of(const struct json *object, const char *key, double fallback)
{
    const struct json *value = json_member(object, key);

    return value && value->kind == JSON_NUMBER ? value->number : fallback;
}

/* Does the process run on this device? A whole GPU has all of its processes. */
static int runs_on(nvmlDevice_t device, const struct json *process)
{
    return !device->mig
           || (number_of(process, "gpu_instance_id", -1) == number_of(device->mig, "gpu_instance_id", -2)
               && number_of(process, "compute_instance_id", 0) == number_of(device->mig, "compute_instance_id", 0));
}

static const struct json *first_process(nvmlDevice_t device)
{
    const struct json *processes = profile_field(&the_profile, device, "processes");

    return processes && processes->kind == JSON_ARRAY ? processes->children : NULL;
}

/* Types are "C", "G", "C+G" and "M+C", as nvidia-smi prints them, and "" of one that is on no list; wanted is 'C', 'G',
 * 'M' or 0 for all. */
static int has_type(const struct json *process, char wanted)
{
    const struct json *type = json_member(process, "type");
    const char *text = type && type->kind == JSON_STRING ? type->text : "C";

    return wanted ? strchr(text, wanted) != NULL : *text != '\0';
}

static nvmlProcessInfo_t process_info(const struct json *process)
{
    double used = number_of(process, "used_memory_mib", -1);
    nvmlProcessInfo_t info;

    memset(&info, 0, sizeof info);
    info.pid = (unsigned int)number_of(process, "pid", 0);
    info.usedGpuMemory = used < 0 ? ~0ULL : (unsigned long long)used * MIB;
    info.gpuInstanceId = (unsigned int)number_of(process, "gpu_instance_id", NVML_INSTANCE_ID_NONE);
    info.computeInstanceId = (unsigned int)number_of(process, "compute_instance_id", NVML_INSTANCE_ID_NONE);
    return info;
}

/* Fills what fits and always says how many there are. In a container, other PID namespaces are not seen. */
static unsigned int list_processes(nvmlDevice_t device, char type, unsigned int room, nvmlProcessInfo_t *infos)
{
    const struct json *process = the_profile.in_container ? NULL : first_process(device);
    unsigned int count = 0;

    for (; process; process = process->next) {
        if (!runs_on(device, process) || !has_type(process, type))
            continue;
        if (infos && count < room)
            infos[count] = process_info(process);
        count++;
    }
    return count;
}

static nvmlReturn_t running_processes(nvmlDevice_t device, char type, unsigned int *count, nvmlProcessInfo_t *infos)
{
    unsigned int room;

    TRY(answering(device));
    NEED(count);
    room = *count;
    *count = list_processes(device, type, room, infos);
    return *count > (infos ? room : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_LIST(name, type)                                                          \
    NVML_API name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
    {                                                                                     \
        return running_processes(device, type, count, infos);                             \
    }                                                                                     \
    NVML_API name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
    {                                                                                     \
        SINCE(510);                                                                       \
        return running_processes(device, type, count, infos);                             \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, 'C')
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G')
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'M')

NVML_API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    static const char types[] = {'C', 'G', 'M', 0};
    nvmlProcessInfo_t infos[256];
    unsigned int count, room, i;

    TRY(answering(device));
    SINCE(535);
    NEED(list && list->mode < sizeof types);
    room = list->procArray ? list->numProcArrayEntries : 0;
    count = list_processes(device, types[list->mode], 256, infos);
    list->numProcArrayEntries = count;
    if (count > room || count > 256)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (i = 0; i < count; i++) {
        nvmlProcessDetail_t *detail = &list->procArray[i];

        detail->pid = infos[i].pid;
        detail->usedGpuMemory = infos[i].usedGpuMemory;
        detail->gpuInstanceId = infos[i].gpuInstanceId;
        detail->computeInstanceId = infos[i].computeInstanceId;
        detail->usedGpuCcProtectedMemory = 0;
    }
    return NVML_SUCCESS;
}

/* ---- memory ---- */

/* MiB of one figure: from the MIG device, else from the GPU; 0 where it is not told. */
static double memory_figure(nvmlDevice_t device, const char *key, const char *path)
{
    const struct json *value;

    if (device->mig)
        return number_of(json_member(device->mig, "memory"), key, 0);
    value = profile_field(&the_profile, device, path);
    return value && value->kind == JSON_NUMBER ? value->number : 0;
}

static nvmlReturn_t read_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    const struct json *process;
    double total, reserved, used;

    TRY(answering(device));
    if (!device->mig)
        TRY(get_number(device, "memory.total_mib", &total));
    total = memory_figure(device, "total_mib", "memory.total_mib");
    reserved = memory_figure(device, "reserved_mib", "memory.reserved_mib");
    used = memory_figure(device, "unlisted_mib", "memory.unlisted_mib");
    for (process = first_process(device); process; process = process->next)
        if (runs_on(device, process))
            used += number_of(process, "used_memory_mib", 0);
    if (used > total - reserved)
        used = total - reserved;
    memory->total = (unsigned long long)total * MIB;
    memory->reserved = (unsigned long long)reserved * MIB;
    memory->used = (unsigned long long)used * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* The first version of the struct knows no reserved memory and counts it as used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t figures;

    NEED(memory);
    TRY(read_memory(device, &figures));
    memory->total = figures.total;
    memory->free = figures.free;
    memory->used = figures.total - figures.free;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    SINCE(510);
    NEED(memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2U))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return read_memory(device, memory);
}

NVML_API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    unsigned int total;

    NEED(memory);
    TRY(get_uint(device, "bar1_total_mib", &total));
    memory->bar1Total = total * MIB;
    memory->bar1Used = total ? MIB : 0;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    TRY(answering(device));
    SINCE(535);
    NEED(memory);
    memset(memory, 0, sizeof *memory);
    return NVML_SUCCESS;
}

/* ---- plain numbers ---- */

#define UINT_FACT(name, path)                              \
    NVML_API name(nvmlDevice_t device, unsigned int *value) \
    {                                                      \
        return get_uint(device, path, value);              \
    }

UINT_FACT(nvmlDeviceGetMemoryBusWidth, "memory_bus_width")
UINT_FACT(nvmlDeviceGetNumGpuCores, "cuda_cores")
UINT_FACT(nvmlDeviceGetCurrPcieLinkGeneration, "pci.generation.current")
UINT_FACT(nvmlDeviceGetMaxPcieLinkGeneration, "pci.generation.max")
UINT_FACT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pci.generation.device_max")
UINT_FACT(nvmlDeviceGetCurrPcieLinkWidth, "pci.width.current")
UINT_FACT(nvmlDeviceGetMaxPcieLinkWidth, "pci.width.max")
UINT_FACT(nvmlDeviceGetFanSpeed, "fan_speed_percent")
UINT_FACT(nvmlDeviceGetModuleId, "module_id")

static nvmlReturn_t scaled(nvmlDevice_t device, const char *path, double scale, unsigned int *value)
{
    double number;

    NEED(value);
    TRY(get_number(device, path, &number));
    *value = (unsigned int)(number * scale + 0.5);
    return NVML_SUCCESS;
}

/* Watts in the profile, milliwatts in NVML. */
#define POWER_FACT(name, path)                             \
    NVML_API name(nvmlDevice_t device, unsigned int *value) \
    {                                                      \
        return scaled(device, path, 1000, value);          \
    }

POWER_FACT(nvmlDeviceGetPowerUsage, "power.draw_w")
POWER_FACT(nvmlDeviceGetPowerManagementLimit, "power.limit_w")
POWER_FACT(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_limit_w")
POWER_FACT(nvmlDeviceGetEnforcedPowerLimit, "power.limit_w")

NVML_API nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high)
{
    TRY(scaled(device, "power.min_limit_w", 1000, low));
    return scaled(device, "power.max_limit_w", 1000, high);
}

/* ---- modes ---- */

NVML_API nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode)
{
    return get_enabled(device, "persistence_mode", mode);
}

NVML_API nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    TRY(get_enabled(device, "ecc.mode", current));
    return get_enabled(device, "ecc.mode", pending);
}

NVML_API nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process", NULL};

    return get_choice(device, "compute_mode", names, mode);
}

NVML_API nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    static const char *const names[] = {"None", "HMM", "ATS", NULL};

    SINCE(575);
    NEED(mode);
    return get_choice(device, "addressing_mode", names, &mode->value);
}

NVML_API nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode)
{
    static const char *const names[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA", NULL};

    return get_choice(device, "virtualization_mode", names, mode);
}

NVML_API nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned int *mode)
{
    TRY(known(device));
    NEED(mode);
    *mode = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned int *active)
{
    return nvmlDeviceGetDisplayMode(device, active);
}

NVML_API nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    TRY(answering(device));
    SINCE(510);
    NEED(version);
    strcpy(version, profile_text(&the_profile, "driver.version", ""));
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *default_mode)
{
    TRY(answering(device));
    SINCE(510);
    NEED(enabled && default_mode);
    *enabled = *default_mode = 1;
    return NVML_SUCCESS;
}

/* ---- clocks, temperature, utilization ---- */

static const char *const current_clocks[] = {"clocks.graphics_mhz", "clocks.sm_mhz", "clocks.memory_mhz",
                                             "clocks.video_mhz"};
static const char *const max_clocks[] = {"max_clocks.graphics_mhz", "max_clocks.sm_mhz", "max_clocks.memory_mhz",
                                         "max_clocks.video_mhz"};
static const char *const application_clocks[] = {"application_clocks.graphics_mhz", "application_clocks.graphics_mhz",
                                                 "application_clocks.memory_mhz", "application_clocks.video_mhz"};

static nvmlReturn_t read_clock(nvmlDevice_t device, const char *const *paths, unsigned int type, unsigned int *mhz)
{
    NEED(type < NVML_CLOCK_COUNT);
    return get_uint(device, paths[type], mhz);
}

NVML_API nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return read_clock(device, current_clocks, type, mhz);
}

NVML_API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return read_clock(device, max_clocks, type, mhz);
}

/* Driver 590 took the application clocks out of the interface. */
NVML_API nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    TRY(answering(device));
    return driver_major() >= 590 ? NVML_ERROR_DEPRECATED : read_clock(device, application_clocks, type, mhz);
}

NVML_API nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return nvmlDeviceGetApplicationsClock(device, type, mhz);
}

NVML_API nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return read_clock(device, max_clocks, type, mhz);
}

NVML_API nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz)
{
    static const char *const *const paths[] = {current_clocks, application_clocks, application_clocks, max_clocks};

    NEED(id < sizeof paths / sizeof *paths);
    return read_clock(device, paths[id], type, mhz);
}

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    NEED(sensor == 0);
    return get_uint(device, "temperature.gpu_c", celsius);
}

NVML_API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    unsigned int celsius;

    SINCE(570);
    NEED(temperature);
    TRY(nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius));
    temperature->temperature = (int)celsius;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius)
{
    static const char *const paths[] = {"temperature.shutdown_c", "temperature.slowdown_c", "temperature.memory_max_c",
                                        "temperature.gpu_max_c"};

    TRY(answering(device));
    if (threshold >= sizeof paths / sizeof *paths)
        return NVML_ERROR_NOT_SUPPORTED;
    return get_uint(device, paths[threshold], celsius);
}

NVML_API nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state)
{
    const char *text;

    NEED(state);
    TRY(get_text(device, "performance_state", &text)); /* "P0" */
    *state = (unsigned int)(text[1] - '0');
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned int *state)
{
    return nvmlDeviceGetPerformanceState(device, state);
}

NVML_API nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    static const char *const bits[] = {"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown",
                                       "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown",
                                       "hw_power_brake_slowdown", "display_clocks_setting", NULL};
    const struct json *value;
    int bit;

    NEED(reasons);
    TRY(get_value(device, "event_reasons", JSON_ARRAY, &value));
    *reasons = 0;
    for (value = value->children; value; value = value->next) {
        bit = value->kind == JSON_STRING ? position_of(value->text, bits) : -1;
        if (bit >= 0)
            *reasons |= 1ULL << bit;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

NVML_API nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    TRY(answering(device));
    NEED(reasons);
    *reasons = 0x1FF;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

/* A GPU in MIG mode has no utilization of the whole. */
static nvmlReturn_t utilization(nvmlDevice_t device, const char *path, unsigned int *percent)
{
    unsigned int mig = 0;

    TRY(answering(device));
    if (get_enabled(device, "mig.mode", &mig) == NVML_SUCCESS && mig)
        return NVML_ERROR_NOT_SUPPORTED;
    return get_uint(device, path, percent);
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    NEED(rates);
    TRY(utilization(device, "utilization.gpu", &rates->gpu));
    return utilization(device, "utilization.memory", &rates->memory);
}

#define UTILIZATION_FACT(name, path)                                                   \
    NVML_API name(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) \
    {                                                                                  \
        NEED(period_us);                                                               \
        *period_us = 167000;                                                           \
        return utilization(device, path, percent);                                     \
    }

UTILIZATION_FACT(nvmlDeviceGetEncoderUtilization, "utilization.encoder")
UTILIZATION_FACT(nvmlDeviceGetDecoderUtilization, "utilization.decoder")

/* ---- memory errors ---- */

NVML_API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                     unsigned long long *count)
{
    static const char *const paths[2][2] = {
        {"ecc.volatile.dram_correctable", "ecc.aggregate.dram_correctable"},
        {"ecc.volatile.dram_uncorrectable", "ecc.aggregate.dram_uncorrectable"},
    };
    unsigned int enabled, value;

    NEED(count && type < 2 && counter < 2);
    TRY(get_enabled(device, "ecc.mode", &enabled));
    if (!enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    TRY(get_uint(device, paths[type][counter], &value));
    *count = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_flag(nvmlDevice_t device, const char *path, unsigned int *flag)
{
    const struct json *value;

    NEED(flag);
    TRY(get_value(device, path, JSON_BOOL, &value));
    *flag = value->number != 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                   unsigned int *pending, unsigned int *failure)
{
    TRY(get_uint(device, "remapped_rows.correctable", correctable));
    TRY(get_uint(device, "remapped_rows.uncorrectable", uncorrectable));
    TRY(read_flag(device, "remapped_rows.pending", pending));
    return read_flag(device, "remapped_rows.failure", failure);
}

NVML_API nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    NEED(values);
    TRY(get_uint(device, "remapped_rows.histogram.max", &values->max));
    TRY(get_uint(device, "remapped_rows.histogram.high", &values->high));
    TRY(get_uint(device, "remapped_rows.histogram.partial", &values->partial));
    TRY(get_uint(device, "remapped_rows.histogram.low", &values->low));
    return get_uint(device, "remapped_rows.histogram.none", &values->none);
}

NVML_API nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                   unsigned long long *addresses)
{
    unsigned int pages, room, i;

    NEED(count && cause < 2);
    TRY(get_uint(device, cause == 0 ? "retired_pages.single_bit" : "retired_pages.double_bit", &pages));
    room = addresses ? *count : 0;
    *count = pages;
    if (pages > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (i = 0; i < pages; i++)
        addresses[i] = 0x100000ULL + i; /* which pages does not matter, how many does */
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    return read_flag(device, "retired_pages.pending", pending);
}

/* ---- NUMA ---- */

/* Only where the GPU's own memory is a NUMA node (GH200, GB200): not where the GPU is plugged in. */
NVML_API nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    SINCE(525);
    return get_uint(device, "gpu_numa_id", node);
}

static void set_bit(unsigned long *set, unsigned int words, unsigned long bit)
{
    unsigned long width = 8 * sizeof *set;

    if (bit / width < words)
        set[bit / width] |= 1UL << (bit % width);
}

NVML_API nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope)
{
    unsigned int node;

    (void)scope;
    NEED(set && words);
    TRY(get_uint(device, "numa_node", &node));
    memset(set, 0, words * sizeof *set);
    set_bit(set, words, node);
    return NVML_SUCCESS;
}

/* "0-55,112-167" */
NVML_API nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    const char *text;
    unsigned long first, last;
    char *end;

    NEED(set && words);
    TRY(get_text(device, "cpu_affinity", &text));
    memset(set, 0, words * sizeof *set);
    while (*text) {
        first = last = strtoul(text, &end, 10);
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (end == text)
            return NVML_ERROR_UNKNOWN;
        for (; first <= last; first++)
            set_bit(set, words, first);
        text = *end == ',' ? end + 1 : end;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                             unsigned int scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

/* ---- field values ---- */

enum { VALUE_UNSIGNED_INT = 1 };

static const struct {
    unsigned int id;
    const char *path;
    double scale;
} number_fields[] = {
    {82, "temperature.memory_c", 1},       /* NVML_FI_DEV_MEMORY_TEMP */
    {91, "nvlink.links", 1},               /* NVML_FI_DEV_NVLINK_LINK_COUNT */
    {142, "remapped_rows.correctable", 1}, /* NVML_FI_DEV_REMAPPED_COR */
    {143, "remapped_rows.uncorrectable", 1},
    {164, "nvlink.speed_mbps", 1},         /* NVML_FI_DEV_NVLINK_GET_SPEED */
    {185, "power.draw_w", 1000},           /* NVML_FI_DEV_POWER_AVERAGE */
    {186, "power.draw_w", 1000},           /* NVML_FI_DEV_POWER_INSTANT */
    {187, "power.min_limit_w", 1000},
    {188, "power.max_limit_w", 1000},
    {189, "power.default_limit_w", 1000},
    {190, "power.limit_w", 1000},          /* NVML_FI_DEV_POWER_CURRENT_LIMIT */
    {192, "power.limit_w", 1000},          /* NVML_FI_DEV_POWER_REQUESTED_LIMIT */
};

static nvmlReturn_t read_field(nvmlDevice_t device, unsigned int id, unsigned int *value)
{
    size_t i;

    for (i = 0; i < sizeof number_fields / sizeof *number_fields; i++)
        if (number_fields[i].id == id)
            return scaled(device, number_fields[i].path, number_fields[i].scale, value);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    int i;

    TRY(answering(device));
    NEED(values && count >= 0);
    for (i = 0; i < count; i++) {
        values[i].valueType = VALUE_UNSIGNED_INT;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = read_field(device, values[i].fieldId, &values[i].value.uiVal);
    }
    return NVML_SUCCESS;
}

/* ---- known to NVML, not to this simulation ---- */

#define NOT_SIMULATED(name)               \
    NVML_API name(nvmlDevice_t device)    \
    {                                     \
        TRY(answering(device));           \
        return NVML_ERROR_NOT_SUPPORTED;  \
    }

NOT_SIMULATED(nvmlDeviceGetC2cModeInfoV)
NOT_SIMULATED(nvmlDeviceGetDetailedEccErrors)
NOT_SIMULATED(nvmlDeviceGetInforomVersion)
NOT_SIMULATED(nvmlDeviceGetMemoryErrorCounter)
NOT_SIMULATED(nvmlDeviceGetPcieThroughput)
NOT_SIMULATED(nvmlDeviceGetPlatformInfo)
NOT_SIMULATED(nvmlDeviceGetSramEccErrorStatus)
NOT_SIMULATED(nvmlDeviceGetTotalEnergyConsumption)
NOT_SIMULATED(nvmlDeviceGetViolationStatus)
