/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* The profile of the simulated NVIDIA driver: what this host's driver and GPUs are. See ../README.md. */
#ifndef GPUFLEET_PROFILE_H
#define GPUFLEET_PROFILE_H

#include "json.h"

#define MAX_GPUS 32
#define MAX_MIG_DEVICES 16

/* A GPU, or one MIG device of it. nvmlDevice_t points to one of these. */
struct device {
    const struct json *gpu;       /* its object in the profile */
    const struct json *mig;       /* the MIG device's object, null for a whole GPU */
    int profile_index;            /* position of the GPU in the profile: rows and columns of "links" */
    int index;                    /* position among the visible GPUs, or MIG devices of the GPU */
    int mig_count;                /* visible MIG devices */
    struct device *parent;        /* the GPU of a MIG device */
    struct device *mig_devices;
};

struct profile {
    struct json *root;
    struct device gpus[MAX_GPUS];
    struct device mig_devices[MAX_GPUS][MAX_MIG_DEVICES];
    int gpu_count;
    int in_container; /* a list of visible devices is there: processes of other PID namespaces are not seen */
};

/* Returns 0, or -1 where there is no readable profile, which is how a host without the driver looks. */
int profile_load(struct profile *profile);
void profile_unload(struct profile *profile);

/* A value of the device by its path: from the GPU, else from "gpu_defaults"; null pointer where absent. */
const struct json *profile_field(const struct profile *profile, const struct device *device, const char *path);

/* Text below the root; the fallback where it is absent or null. */
const char *profile_text(const struct profile *profile, const char *path, const char *fallback);

#endif
