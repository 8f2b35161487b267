/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* A small JSON reader for the profiles of the simulated NVIDIA driver. */
#ifndef GPUFLEET_JSON_H
#define GPUFLEET_JSON_H

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    double number;         /* JSON_NUMBER, and 0 or 1 for JSON_BOOL */
    char *text;            /* JSON_STRING */
    char *key;             /* name of this member when its parent is an object */
    struct json *children; /* first element or member */
    struct json *next;     /* next sibling */
};

/* Returns the tree, or a null pointer where the text is not JSON. */
struct json *json_parse(const char *text);
void json_free(struct json *node);

/* Gives the object a member, or the array an element (without a key), which becomes part of the tree. */
void json_append(struct json *parent, const char *key, struct json *node);

const struct json *json_member(const struct json *object, const char *key);
const struct json *json_at(const struct json *array, int position);
int json_length(const struct json *array);

/* Follows "a.b.c" from node. Stops early at a null and at an {"error": …} object, which stand for all
 * that could lie below them. A null pointer says that the path is not there. */
const struct json *json_path(const struct json *node, const char *path);

/* The name in {"error": "gpu_is_lost"}, else a null pointer. */
const char *json_error(const struct json *node);

#endif
