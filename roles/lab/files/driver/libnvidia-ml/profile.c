/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* The profile of the simulated NVIDIA driver: what this host's driver and GPUs are. See ../README.md. */
#include "profile.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_PROFILE "/etc/gpufleet-driver/profile"
#define DEFAULT_VISIBLE "/run/gpufleet-driver/visible-devices"
#define DEFAULT_ALLOCATIONS "/run/gpufleet-driver/allocations"

static const char *path_of(const char *variable, const char *fallback)
{
    const char *path = getenv(variable);

    return path && *path ? path : fallback;
}

static char *read_stream(FILE *file)
{
    size_t size = 0, used = 0;
    char *text = NULL;

    do {
        if (used + 1 >= size) {
            size = size ? size * 2 : 16384;
            text = realloc(text, size);
        }
        used += fread(text + used, 1, size - used - 1, file);
    } while (!feof(file) && !ferror(file));
    text[used] = '\0';
    return text;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = file ? read_stream(file) : NULL;

    if (file)
        fclose(file);
    return text;
}

/* ---- allocations: what engines of the lab hold, which say so in a file that they keep locked ---- */

static void add_process(const struct json *gpu, const char *name, double mib, int pid)
{
    struct json *processes = (struct json *)json_member(gpu, "processes");
    char text[512];

    if (!processes) {
        processes = json_parse("[]");
        json_append((struct json *)gpu, "processes", processes);
    }
    snprintf(text, sizeof text, "{\"pid\": %d, \"name\": \"%.200s\", \"type\": \"%s\", \"used_memory_mib\": %.0f}",
             pid < 0 ? 0 : pid, name, pid < 0 ? "" : "C", mib);
    if (processes->kind == JSON_ARRAY)
        json_append(processes, NULL, json_parse(text));
}

static void add_allocation(struct profile *profile, const struct json *allocation, int pid)
{
    const struct json *gpus = json_member(profile->root, "gpus"), *held = json_member(allocation, "gpus");
    const struct json *name = json_member(allocation, "name");
    int i;

    for (i = 0; i < json_length(gpus); i++) {
        const struct json *uuid = json_member(json_at(gpus, i), "uuid");
        const struct json *mib = uuid && uuid->kind == JSON_STRING ? json_member(held, uuid->text) : NULL;

        if (mib && mib->kind == JSON_NUMBER)
            add_process(json_at(gpus, i), name && name->kind == JSON_STRING ? name->text : "", mib->number, pid);
    }
}

/* The process that holds the lock (0: of a PID namespace that is not seen from here), or -1: it has ended. */
static int holder(FILE *file)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(fileno(file), F_GETLK, &lock) || lock.l_type == F_UNLCK ? -1 : (int)lock.l_pid;
}

static int still_held(FILE *file, const struct json *allocation, int pid)
{
    const struct json *seconds = json_member(allocation, "release_seconds");
    struct stat status;

    if (pid >= 0)
        return 1;
    return seconds && !fstat(fileno(file), &status) && difftime(time(NULL), status.st_mtime) < seconds->number;
}

static void read_allocation(struct profile *profile, const char *folder, const char *name)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = *name == '.' ? NULL : fopen(path, "r");
    if (file) {
        char *text = read_stream(file);
        struct json *allocation = json_parse(text);
        int pid = holder(file);

        if (allocation && still_held(file, allocation, pid))
            add_allocation(profile, allocation, pid);
        json_free(allocation);
        free(text);
        fclose(file);
    }
}

static void read_allocations(struct profile *profile)
{
    const char *folder = path_of("GPUFLEET_DRIVER_ALLOCATIONS", DEFAULT_ALLOCATIONS);
    DIR *directory = opendir(folder);
    struct dirent *entry;

    while (directory && (entry = readdir(directory)))
        read_allocation(profile, folder, entry->d_name);
    if (directory)
        closedir(directory);
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
    char *text = read_file(path_of("GPUFLEET_DRIVER_PROFILE", DEFAULT_PROFILE));
    char *list = read_file(path_of("GPUFLEET_DRIVER_VISIBLE", DEFAULT_VISIBLE));
    const struct json *gpus;
    int i;

    memset(profile, 0, sizeof *profile);
    profile->root = text ? json_parse(text) : NULL;
    profile->in_container = list != NULL;
    if (profile->root)
        read_allocations(profile);
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
