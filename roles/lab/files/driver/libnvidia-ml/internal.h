/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the parts of the simulated libnvidia-ml. */
#ifndef GPUFLEET_NVML_INTERNAL_H
#define GPUFLEET_NVML_INTERNAL_H

#include "nvml.h"
#include "profile.h"

#define NVML_API __attribute__((visibility("default"))) nvmlReturn_t

/* Leaves the function with what the expression returns, unless it is NVML_SUCCESS. */
#define TRY(expression)                          \
    do {                                         \
        nvmlReturn_t try_result = (expression);  \
        if (try_result != NVML_SUCCESS)          \
            return try_result;                   \
    } while (0)

#define NEED(condition)                          \
    do {                                         \
        if (!(condition))                        \
            return NVML_ERROR_INVALID_ARGUMENT;  \
    } while (0)

/* For functions that older drivers do not have. Without a driver (0) what follows tells what is wrong. */
#define SINCE(major)                             \
    do {                                         \
        if (driver_major() && driver_major() < (major)) \
            return NVML_ERROR_FUNCTION_NOT_FOUND; \
    } while (0)

extern struct profile the_profile;

int driver_major(void);
nvmlReturn_t error_by_name(const char *name);

/* The library is initialized and this is a handle; for what can be told of a GPU that does not answer. */
nvmlReturn_t known(nvmlDevice_t device);
/* The same, and the GPU answers. */
nvmlReturn_t answering(nvmlDevice_t device);

/* Reads a value of a known device, whether it answers or not: its identity and its modes. "Enabled" is 1. */
nvmlReturn_t get_known_text(nvmlDevice_t device, const char *path, const char **text);
nvmlReturn_t get_enabled(nvmlDevice_t device, const char *path, unsigned int *enabled);
/* The position of the text among names, 0 where it is none of them. */
nvmlReturn_t get_choice(nvmlDevice_t device, const char *path, const char *const *names, unsigned int *choice);

/* Reads a value of an answering device: null or absent is NVML_ERROR_NOT_SUPPORTED. */
nvmlReturn_t get_value(nvmlDevice_t device, const char *path, enum json_kind kind, const struct json **value);
nvmlReturn_t get_text(nvmlDevice_t device, const char *path, const char **text);
nvmlReturn_t get_number(nvmlDevice_t device, const char *path, double *number);
nvmlReturn_t get_uint(nvmlDevice_t device, const char *path, unsigned int *number);
nvmlReturn_t copy_text(const char *text, char *buffer, unsigned int length);

/* Position of the text in a list of names that ends with a null pointer, or -1. */
int position_of(const char *text, const char *const *names);

nvmlReturn_t fill_pci_info(const char *bus_id, nvmlPciInfo_t *pci);

#endif
