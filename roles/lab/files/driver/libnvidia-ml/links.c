/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* Simulated libnvidia-ml of the gpufleet.vllm lab, not NVIDIA's: how GPUs are connected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static const struct {
    const char *name; /* as in nvidia-smi topo -m */
    unsigned int level;
} pcie_levels[] = {{"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};

/* The cell of a matrix of the profile. A single text stands for every pair. Null pointer where absent. */
static const char *cell(const char *matrix, int row, int column)
{
    const struct json *value = json_member(the_profile.root, matrix);

    if (value && value->kind == JSON_ARRAY)
        value = json_at(json_at(value, row), column);
    return value && value->kind == JSON_STRING ? value->text : NULL;
}

/* 12 for "NV12", 0 for a connection without NVLink. */
static int nvlinks_between(int row, int column)
{
    const char *text = row == column ? NULL : cell("links", row, column);

    return text && strncmp(text, "NV", 2) == 0 ? atoi(text + 2) : 0;
}

static int same_numa_node(nvmlDevice_t first, nvmlDevice_t second)
{
    unsigned int a, b;

    return get_uint(first, "numa_node", &a) == NVML_SUCCESS && get_uint(second, "numa_node", &b) == NVML_SUCCESS
           && a == b;
}

/* NVLink hides the PCIe path in "links": "pcie_links" tells it, else it follows from the NUMA nodes. */
static const char *pcie_path(nvmlDevice_t first, nvmlDevice_t second)
{
    const char *text = cell("links", first->profile_index, second->profile_index);

    if (!text || strncmp(text, "NV", 2) == 0)
        text = cell("pcie_links", first->profile_index, second->profile_index);
    return text ? text : same_numa_node(first, second) ? "NODE" : "SYS";
}

NVML_API nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned int *level)
{
    const char *path;
    size_t i;

    TRY(answering(first));
    TRY(answering(second));
    NEED(level);
    *level = 0;
    if (first->profile_index == second->profile_index)
        return NVML_SUCCESS;
    path = pcie_path(first, second);
    for (i = 0; i < sizeof pcie_levels / sizeof *pcie_levels; i++)
        if (strcmp(path, pcie_levels[i].name) == 0)
            *level = pcie_levels[i].level;
    return *level ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML_API nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                          nvmlDevice_t *devices)
{
    unsigned int found = 0, reached;
    int i;

    TRY(answering(device));
    NEED(count);
    for (i = 0; i < the_profile.gpu_count; i++) {
        nvmlDevice_t other = &the_profile.gpus[i];

        if (other->profile_index == device->profile_index
            || nvmlDeviceGetTopologyCommonAncestor(device, other, &reached) != NVML_SUCCESS || reached > level)
            continue;
        if (devices && found < *count)
            devices[found] = other;
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int index, unsigned int *status)
{
    const struct json *pcie_p2p = json_member(the_profile.root, "pcie_p2p");
    int nvlinks;

    TRY(answering(first));
    TRY(answering(second));
    NEED(status && index < 5 && first != second);
    nvlinks = nvlinks_between(first->profile_index, second->profile_index);
    *status = NVML_P2P_STATUS_OK;
    if (!nvlinks && (index == NVML_P2P_CAPS_INDEX_NVLINK || (pcie_p2p && !pcie_p2p->number)))
        *status = NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* ---- NVLink ---- */

/* The GPU at the other end of the link, -1 for a switch, -2 for no link. Links go to the peers in order. */
static int far_end(nvmlDevice_t device, unsigned int link)
{
    int row = device->profile_index, column, total, count = json_length(json_member(the_profile.root, "gpus"));
    unsigned int before = 0, links;

    if (json_length(json_member(the_profile.root, "nvswitches")))
        return get_uint(device, "nvlink.links", &links) == NVML_SUCCESS && link < links ? -1 : -2;
    for (column = 0; column < count; column++) {
        total = nvlinks_between(row, column);
        if (link < before + (unsigned int)total)
            return column;
        before += (unsigned int)total;
    }
    return -2;
}

static nvmlReturn_t has_link(nvmlDevice_t device, unsigned int link)
{
    unsigned int links;

    TRY(get_uint(device, "nvlink.links", &links));
    NEED(link < NVML_NVLINK_MAX_LINKS);
    return link < links ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    TRY(has_link(device, link));
    NEED(active);
    *active = far_end(device, link) > -2;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    TRY(has_link(device, link));
    return get_uint(device, "nvlink.version", version);
}

NVML_API nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability,
                                       unsigned int *result)
{
    TRY(has_link(device, link));
    NEED(result && capability < 6);
    *result = far_end(device, link) > -2;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type)
{
    int end;

    TRY(has_link(device, link));
    NEED(type);
    end = far_end(device, link);
    if (end == -2)
        return NVML_ERROR_NOT_SUPPORTED;
    *type = end == -1 ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    const struct json *switches = json_member(the_profile.root, "nvswitches"), *bus_id;
    int end;

    TRY(has_link(device, link));
    NEED(pci);
    end = far_end(device, link);
    if (end == -2)
        return NVML_ERROR_NOT_SUPPORTED;
    if (end == -1)
        bus_id = json_at(switches, (int)link % json_length(switches));
    else
        bus_id = json_path(json_at(json_member(the_profile.root, "gpus"), end), "pci.bus_id");
    return bus_id && bus_id->kind == JSON_STRING ? fill_pci_info(bus_id->text, pci) : NVML_ERROR_UNKNOWN;
}

/* ---- fabric ---- */

static void parse_uuid(const char *text, unsigned char *bytes)
{
    unsigned int byte;
    int count = 0;

    memset(bytes, 0, 16);
    while (*text && count < 16) {
        if (*text == '-') {
            text++;
        } else {
            if (sscanf(text, "%2x", &byte) != 1)
                return;
            bytes[count++] = (unsigned char)byte;
            text += 2;
        }
    }
}

/* Two bits for each of bandwidth, route recovery, route, access timeout: 2 says that it is well. */
#define FABRIC_HEALTHY_MASK (2U << 0 | 2U << 2 | 2U << 4 | 2U << 6 | 1U << 8)
#define FABRIC_ROUTE_UNHEALTHY_MASK (2U << 0 | 2U << 2 | 1U << 4 | 2U << 6 | 1U << 8)

static nvmlReturn_t read_fabric(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    static const char *const states[] = {"Not Supported", "Not Started", "In Progress", "Completed", NULL};
    const char *state = "Not Supported", *status = "Success", *cluster = "", *health = "Healthy";
    unsigned int clique = 0;
    int position;

    TRY(answering(device));
    memset(info, 0, sizeof *info);
    if (get_text(device, "fabric.state", &state) != NVML_SUCCESS)
        return NVML_SUCCESS; /* real drivers answer: state "not supported" */
    (void)get_text(device, "fabric.status", &status);
    (void)get_text(device, "fabric.cluster_uuid", &cluster);
    (void)get_text(device, "fabric.health", &health);
    (void)get_uint(device, "fabric.clique_id", &clique);
    position = position_of(state, states);
    info->state = (unsigned char)(position < 0 ? 0 : position);
    info->status = strcmp(status, "Success") == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    info->cliqueId = clique;
    parse_uuid(cluster, info->clusterUuid);
    info->healthMask = strcmp(health, "Healthy") == 0 ? FABRIC_HEALTHY_MASK : FABRIC_ROUTE_UNHEALTHY_MASK;
    info->healthSummary = strcmp(health, "Healthy") == 0 ? 1 : 2;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    nvmlGpuFabricInfo_v3_t figures;

    SINCE(525);
    NEED(info);
    TRY(read_fabric(device, &figures));
    memcpy(info->clusterUuid, figures.clusterUuid, sizeof info->clusterUuid);
    info->status = figures.status;
    info->cliqueId = figures.cliqueId;
    info->state = figures.state;
    return NVML_SUCCESS;
}

/* The second version of the struct is the third without its last member. */
NVML_API nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    nvmlGpuFabricInfo_v3_t figures;
    unsigned int version;

    SINCE(545);
    NEED(info);
    version = info->version;
    TRY(read_fabric(device, &figures));
    figures.version = version;
    if (version == NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2U))
        memcpy(info, &figures, sizeof(nvmlGpuFabricInfo_v2_t));
    else if (version == NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3U))
        *info = figures;
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}
