/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* The profile of the simulated NVIDIA driver: what this host's driver and GPUs are. See ../README.md. */
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PROFILE "/etc/gpufleet-driver/profile"
#define DEFAULT_VISIBLE "/run/gpufleet-driver/visible-devices"

static char *read_file(const char *variable, const char *fallback)
{
    const char *path = getenv(variable);
    FILE *file = fopen(path && *path ? path : fallback, "r");
    size_t size = 0, used = 0;
    char *text = NULL;

    if (!file)
        return NULL;
    do {
        if (used + 1 >= size) {
            size = size ? size * 2 : 16384;
            text = realloc(text, size);
        }
        used += fread(text + used, 1, size - used - 1, file);
    } while (!feof(file) && !ferror(file));
    fclose(file);
    text[used] = '\0';
    return text;
}

/* Is the UUID one of the lines of the list? No list: everything is visible. */
static int listed(const char *list, const struct json *object)
{
    const struct json *uuid = json_member(object, "uuid");
    size_t length;

    if (!list)
        return 1;
    while (uuid && uuid->kind == JSON_STRING && *list) {
        length = strcspn(list, "\n");
        if (strlen(uuid->text) == length && strncmp(list, uuid->text, length) == 0)
            return 1;
        list += length + (list[length] == '\n');
    }
    return 0;
}

static void add_mig_devices(struct device *gpu, const char *list)
{
    const struct json *devices = json_path(gpu->gpu, "mig.devices");
    int whole_gpu = listed(list, gpu->gpu), i;

    for (i = 0; i < json_length(devices) && gpu->mig_count < MAX_MIG_DEVICES; i++) {
        struct device *mig = &gpu->mig_devices[gpu->mig_count];

        if (!whole_gpu && !listed(list, json_at(devices, i)))
            continue;
        *mig = *gpu;
        mig->mig = json_at(devices, i);
        mig->parent = gpu;
        mig->index = gpu->mig_count++;
    }
}

static void add_gpu(struct profile *profile, const struct json *object, int profile_index, const char *list)
{
    struct device *gpu = &profile->gpus[profile->gpu_count];

    memset(gpu, 0, sizeof *gpu);
    gpu->gpu = object;
    gpu->profile_index = profile_index;
    gpu->index = profile->gpu_count;
    gpu->mig_devices = profile->mig_devices[profile->gpu_count];
    add_mig_devices(gpu, list);
    if (gpu->mig_count || listed(list, object))
        profile->gpu_count++;
}

int profile_load(struct profile *profile)
{
    char *text = read_file("GPUFLEET_DRIVER_PROFILE", DEFAULT_PROFILE);
    char *list = read_file("GPUFLEET_DRIVER_VISIBLE", DEFAULT_VISIBLE);
    const struct json *gpus;
    int i;

    memset(profile, 0, sizeof *profile);
    profile->root = text ? json_parse(text) : NULL;
    profile->in_container = list != NULL;
    gpus = json_member(profile->root, "gpus");
    for (i = 0; i < json_length(gpus) && i < MAX_GPUS; i++)
        add_gpu(profile, json_at(gpus, i), i, list);
    free(text);
    free(list);
    return profile->root ? 0 : -1;
}

void profile_unload(struct profile *profile)
{
    json_free(profile->root);
    profile->root = NULL;
    profile->gpu_count = 0;
}

const struct json *profile_field(const struct profile *profile, const struct device *device, const char *path)
{
    const struct json *value = json_path(device->gpu, path);

    return value ? value : json_path(json_member(profile->root, "gpu_defaults"), path);
}

const char *profile_text(const struct profile *profile, const char *path, const char *fallback)
{
    const struct json *value = json_path(profile->root, path);

    return value && value->kind == JSON_STRING ? value->text : fallback;
}
