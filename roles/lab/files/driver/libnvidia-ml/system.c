/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* Simulated libnvidia-ml of the gpufleet.vllm lab, not NVIDIA's: start, versions, handles, identity. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

struct profile the_profile;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users; /* nvmlInit calls without their nvmlShutdown */

static const struct {
    nvmlReturn_t code;
    const char *name; /* in profiles; null where a profile cannot ask for it */
    const char *text;
} errors[] = {
    {NVML_SUCCESS, NULL, "Success"},
    {NVML_ERROR_UNINITIALIZED, NULL, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, NULL, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "not_supported", "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "no_permission", "Insufficient Permissions"},
    {NVML_ERROR_NOT_FOUND, NULL, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, NULL, "Insufficient Size"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "not_loaded", "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "timeout", "Timeout"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, NULL, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "corrupted_inforom", "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "gpu_is_lost", "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "reset_required", "GPU requires reset"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, NULL, "Driver/library version mismatch"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NULL, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "deprecated", "Requested functionality has been deprecated"},
    {NVML_ERROR_UNKNOWN, "unknown", "Unknown Error"},
};

#define ERROR_COUNT (sizeof errors / sizeof *errors)

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    size_t i;

    for (i = 0; i < ERROR_COUNT; i++)
        if (errors[i].code == result)
            return errors[i].text;
    return "Unknown Error";
}

nvmlReturn_t error_by_name(const char *name)
{
    size_t i;

    for (i = 0; i < ERROR_COUNT; i++)
        if (errors[i].name && strcmp(errors[i].name, name) == 0)
            return errors[i].code;
    return NVML_ERROR_UNKNOWN;
}

int driver_major(void)
{
    return atoi(profile_text(&the_profile, "driver.version", "0"));
}

int position_of(const char *text, const char *const *names)
{
    int i;

    for (i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

/* ---- start and end ---- */

static const char *library_version(void)
{
    return profile_text(&the_profile, "driver.library_version",
                        profile_text(&the_profile, "driver.version", ""));
}

static nvmlReturn_t connect_to_driver(void)
{
    const char *version, *state;
    const struct json *hang;

    if (profile_load(&the_profile) != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    hang = json_path(the_profile.root, "driver.hang_seconds");
    if (hang && hang->kind == JSON_NUMBER)
        sleep((unsigned int)hang->number);
    state = profile_text(&the_profile, "driver.state", "loaded");
    if (strcmp(state, "loaded") != 0)
        return error_by_name(state);
    version = profile_text(&the_profile, "driver.version", "");
    return strcmp(version, library_version()) == 0 ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

NVML_API nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t result = NVML_SUCCESS;

    (void)flags;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        profile_unload(&the_profile);
        result = connect_to_driver();
    }
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

NVML_API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

    pthread_mutex_lock(&lock);
    if (users > 0) {
        users--;
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static nvmlReturn_t initialized(void)
{
    return users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* ---- reading values ---- */

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int length)
{
    NEED(buffer);
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t fault(nvmlDevice_t device, const char *at)
{
    const struct json *where = profile_field(&the_profile, device, "fault.at");
    const struct json *what = profile_field(&the_profile, device, "fault.what");

    if (!where || !what || where->kind != JSON_STRING || what->kind != JSON_STRING || strcmp(where->text, at) != 0)
        return NVML_SUCCESS;
    return error_by_name(what->text);
}

nvmlReturn_t known(nvmlDevice_t device)
{
    TRY(initialized());
    NEED(device);
    return NVML_SUCCESS;
}

nvmlReturn_t answering(nvmlDevice_t device)
{
    TRY(known(device));
    return fault(device, "query");
}

static nvmlReturn_t read_value(nvmlDevice_t device, const char *path, enum json_kind kind, const struct json **value)
{
    *value = profile_field(&the_profile, device, path);
    if (json_error(*value))
        return error_by_name(json_error(*value));
    return *value && (*value)->kind == kind ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t get_value(nvmlDevice_t device, const char *path, enum json_kind kind, const struct json **value)
{
    TRY(answering(device));
    return read_value(device, path, kind, value);
}

nvmlReturn_t get_text(nvmlDevice_t device, const char *path, const char **text)
{
    const struct json *value;

    TRY(get_value(device, path, JSON_STRING, &value));
    *text = value->text;
    return NVML_SUCCESS;
}

nvmlReturn_t get_number(nvmlDevice_t device, const char *path, double *number)
{
    const struct json *value;

    NEED(number);
    TRY(get_value(device, path, JSON_NUMBER, &value));
    *number = value->number;
    return NVML_SUCCESS;
}

nvmlReturn_t get_uint(nvmlDevice_t device, const char *path, unsigned int *number)
{
    double value;

    NEED(number);
    TRY(get_number(device, path, &value));
    *number = (unsigned int)value;
    return NVML_SUCCESS;
}

nvmlReturn_t get_known_text(nvmlDevice_t device, const char *path, const char **text)
{
    const struct json *value;

    TRY(known(device));
    TRY(read_value(device, path, JSON_STRING, &value));
    *text = value->text;
    return NVML_SUCCESS;
}

nvmlReturn_t get_enabled(nvmlDevice_t device, const char *path, unsigned int *enabled)
{
    const char *text;

    NEED(enabled);
    TRY(get_known_text(device, path, &text));
    *enabled = strcmp(text, "Enabled") == 0;
    return NVML_SUCCESS;
}

nvmlReturn_t get_choice(nvmlDevice_t device, const char *path, const char *const *names, unsigned int *choice)
{
    const char *text;
    int position;

    NEED(choice);
    TRY(get_known_text(device, path, &text));
    position = position_of(text, names);
    *choice = position < 0 ? 0 : (unsigned int)position;
    return NVML_SUCCESS;
}

static nvmlReturn_t copy_identity(nvmlDevice_t device, const char *path, char *buffer, unsigned int length)
{
    const char *text;

    TRY(get_known_text(device, path, &text));
    return copy_text(text, buffer, length);
}

/* ---- versions ---- */

NVML_API nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    TRY(initialized());
    return copy_text(profile_text(&the_profile, "driver.version", ""), version, length);
}

NVML_API nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[64];
    int cuda_major = atoi(profile_text(&the_profile, "driver.cuda_version", "0"));

    TRY(initialized());
    snprintf(text, sizeof text, "%d.%s", cuda_major, library_version());
    return copy_text(text, version, length);
}

/* "13.0" is 13000, "12.8" is 12080. */
NVML_API nvmlSystemGetCudaDriverVersion(int *version)
{
    int major = 0, minor = 0;

    TRY(initialized());
    NEED(version);
    if (sscanf(profile_text(&the_profile, "driver.cuda_version", ""), "%d.%d", &major, &minor) != 2)
        return NVML_ERROR_NOT_SUPPORTED;
    *version = major * 1000 + minor * 10;
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

NVML_API nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
    char text[64];

    TRY(initialized());
    SINCE(560);
    NEED(info);
    snprintf(text, sizeof text, "r%d_00", driver_major());
    return copy_text(text, info->branch, length);
}

NVML_API nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    int i;

    TRY(initialized());
    for (i = 0; i < the_profile.gpu_count; i++) {
        const struct json *process = profile_field(&the_profile, &the_profile.gpus[i], "processes");

        for (process = process ? process->children : NULL; process; process = process->next) {
            const struct json *id = json_member(process, "pid"), *text = json_member(process, "name");

            if (id && text && id->number == pid)
                return copy_text(text->text, name, length);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- handles ---- */

NVML_API nvmlDeviceGetCount_v2(unsigned int *count)
{
    TRY(initialized());
    NEED(count);
    *count = (unsigned int)the_profile.gpu_count;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_handle(nvmlDevice_t gpu, nvmlDevice_t *device)
{
    NEED(device);
    TRY(fault(gpu, "handle"));
    *device = gpu;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    TRY(initialized());
    NEED(index < (unsigned int)the_profile.gpu_count);
    return give_handle(&the_profile.gpus[index], device);
}

static int has_text(const struct json *object, const char *path, const char *text)
{
    const struct json *value = json_path(object, path);

    return value && value->kind == JSON_STRING && strcmp(value->text, text) == 0;
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    int i, j;

    TRY(initialized());
    NEED(uuid);
    for (i = 0; i < the_profile.gpu_count; i++) {
        nvmlDevice_t gpu = &the_profile.gpus[i];

        if (has_text(gpu->gpu, "uuid", uuid))
            return give_handle(gpu, device);
        for (j = 0; j < gpu->mig_count; j++)
            if (has_text(gpu->mig_devices[j].mig, "uuid", uuid))
                return give_handle(&gpu->mig_devices[j], device);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    int i;

    TRY(initialized());
    NEED(serial);
    for (i = 0; i < the_profile.gpu_count; i++)
        if (has_text(the_profile.gpus[i].gpu, "serial", serial))
            return give_handle(&the_profile.gpus[i], device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t fill_pci_info(const char *bus_id, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    if (sscanf(bus_id, "%x:%x:%x.", &pci->domain, &pci->bus, &pci->device) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    return NVML_SUCCESS;
}

static nvmlReturn_t read_pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    const struct json *value;

    TRY(known(device));
    NEED(pci);
    TRY(read_value(device, "pci.bus_id", JSON_STRING, &value));
    TRY(fill_pci_info(value->text, pci));
    if (read_value(device, "pci.device_id", JSON_STRING, &value) == NVML_SUCCESS)
        pci->pciDeviceId = (unsigned int)strtoul(value->text, NULL, 16);
    if (read_value(device, "pci.subsystem_id", JSON_STRING, &value) == NVML_SUCCESS)
        pci->pciSubSystemId = (unsigned int)strtoul(value->text, NULL, 16);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    nvmlPciInfo_t wanted, found;
    int i;

    TRY(initialized());
    NEED(bus_id);
    TRY(fill_pci_info(bus_id, &wanted));
    for (i = 0; i < the_profile.gpu_count; i++)
        if (read_pci_info(&the_profile.gpus[i], &found) == NVML_SUCCESS && strcmp(found.busId, wanted.busId) == 0)
            return give_handle(&the_profile.gpus[i], device);
    return NVML_ERROR_NOT_FOUND;
}

/* ---- identity ---- */

NVML_API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    const struct json *profile;
    const char *product;
    char text[128];

    TRY(get_known_text(device, "name", &product));
    if (!device->mig)
        return copy_text(product, name, length);
    profile = json_member(device->mig, "profile");
    snprintf(text, sizeof text, "%s MIG %s", product, profile && profile->text ? profile->text : "");
    return copy_text(text, name, length);
}

NVML_API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    const struct json *value;

    TRY(known(device));
    value = json_member(device->mig ? device->mig : device->gpu, "uuid");
    if (!value || value->kind != JSON_STRING)
        return NVML_ERROR_NOT_SUPPORTED;
    return copy_text(value->text, uuid, length);
}

NVML_API nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    return copy_identity(device, "serial", serial, length);
}

NVML_API nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    return copy_identity(device, "vbios_version", version, length);
}

NVML_API nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length)
{
    return copy_identity(device, "board_part_number", number, length);
}

NVML_API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    TRY(known(device));
    NEED(index);
    *index = (unsigned int)device->index;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    const struct json *value;

    TRY(known(device));
    NEED(minor);
    *minor = (unsigned int)device->profile_index;
    if (read_value(device, "minor_number", JSON_NUMBER, &value) == NVML_SUCCESS)
        *minor = (unsigned int)value->number;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return read_pci_info(device, pci);
}

NVML_API nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    nvmlPciInfo_t info;

    TRY(read_pci_info(device, &info));
    SINCE(545);
    NEED(pci);
    pci->domain = info.domain;
    pci->bus = info.bus;
    pci->device = info.device;
    pci->pciDeviceId = info.pciDeviceId;
    pci->pciSubSystemId = info.pciSubSystemId;
    pci->baseClass = 3; /* display controller */
    pci->subClass = 2;  /* 3D controller */
    memcpy(pci->busId, info.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

/* "8.0": tells it even of a GPU that does not answer, as the driver knows it from the chip. */
NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    const char *text;

    NEED(major && minor);
    TRY(get_known_text(device, "compute_capability", &text));
    return sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML_API nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
    static const char *const names[] = {"", "", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere",
                                        "Ada Lovelace", "Hopper", "Blackwell", NULL};
    const char *text;
    int position;

    NEED(architecture);
    TRY(get_known_text(device, "architecture", &text));
    position = position_of(text, names);
    *architecture = position < 0 ? 0xFFFFFFFFU : (unsigned int)position;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand)
{
    static const char *const names[] = {"Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan",
                                        "NVIDIA Virtual Applications", "NVIDIA Virtual PC",
                                        "NVIDIA Virtual Compute Server", "NVIDIA RTX Virtual Workstation",
                                        "NVIDIA Cloud Gaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA", NULL};

    return get_choice(device, "brand", names, brand);
}

/* ---- MIG ---- */

NVML_API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    TRY(known(device));
    NEED(is_mig);
    *is_mig = device->mig != NULL;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    NEED(pending);
    TRY(get_enabled(device, "mig.mode", current));
    *pending = *current;
    (void)get_enabled(device, "mig.pending", pending); /* absent: no change is pending */
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    TRY(answering(device));
    NEED(count);
    if (get_uint(device, "mig.max_devices", count) != NVML_SUCCESS)
        *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    unsigned int enabled, pending;

    TRY(nvmlDeviceGetMigMode(device, &enabled, &pending));
    NEED(mig);
    if (!enabled || device->mig || index >= (unsigned int)device->mig_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = &device->mig_devices[index];
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    TRY(known(mig));
    NEED(mig->mig && device);
    *device = mig->parent;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_mig_uint(nvmlDevice_t device, const char *path, unsigned int *number)
{
    const struct json *value;

    TRY(answering(device));
    NEED(number);
    value = json_path(device->mig, path);
    if (!value || value->kind != JSON_NUMBER)
        return device->mig ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
    *number = (unsigned int)value->number;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return read_mig_uint(device, "gpu_instance_id", id);
}

NVML_API nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    return read_mig_uint(device, "compute_instance_id", id);
}

NVML_API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    unsigned int memory;

    NEED(attributes);
    memset(attributes, 0, sizeof *attributes);
    TRY(read_mig_uint(device, "multiprocessors", &attributes->multiprocessorCount));
    TRY(read_mig_uint(device, "memory.total_mib", &memory));
    TRY(read_mig_uint(device, "slices", &attributes->gpuInstanceSliceCount));
    attributes->computeInstanceSliceCount = attributes->gpuInstanceSliceCount;
    attributes->sharedCopyEngineCount = 1;
    attributes->memorySizeMB = memory;
    return NVML_SUCCESS;
}
