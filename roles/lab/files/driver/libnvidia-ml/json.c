/* Copyright: gpufleet contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
/* A small JSON reader for the profiles of the simulated NVIDIA driver. */
#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static struct json *parse_value(const char **at);

static void skip_space(const char **at)
{
    while (isspace((unsigned char)**at))
        (*at)++;
}

static int take(const char **at, const char *word)
{
    size_t length = strlen(word);

    if (strncmp(*at, word, length) != 0)
        return 0;
    *at += length;
    return 1;
}

static struct json *new_node(enum json_kind kind, double number)
{
    struct json *node = calloc(1, sizeof *node);

    if (node) {
        node->kind = kind;
        node->number = number;
    }
    return node;
}

/* UTF-8 from an escape of four hexadecimal digits; profiles need no surrogate pairs. Returns the bytes written. */
static int put_code_point(char *out, unsigned long code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    out[0] = (char)(0xE0 | (code >> 12));
    out[1] = (char)(0x80 | ((code >> 6) & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    return 3;
}

static int put_escape(const char **at, char *out)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char *name;
    char digits[5] = {0};

    if (**at == 'u') {
        strncpy(digits, *at + 1, 4);
        *at += 1 + strlen(digits);
        return put_code_point(out, strtoul(digits, NULL, 16));
    }
    name = **at ? strchr(names, **at) : NULL;
    *out = name ? values[name - names] : **at;
    if (**at)
        (*at)++;
    return 1;
}

static char *parse_string(const char **at)
{
    char *text, *out;

    if (!take(at, "\""))
        return NULL;
    text = out = malloc(strlen(*at) + 1); /* escapes never grow */
    while (text && **at && **at != '"') {
        if (take(at, "\\"))
            out += put_escape(at, out);
        else
            *out++ = *(*at)++;
    }
    if (!text || !take(at, "\"")) {
        free(text);
        return NULL;
    }
    *out = '\0';
    return text;
}

static struct json *parse_member(const char **at, int with_key)
{
    struct json *node;
    char *key = NULL;

    skip_space(at);
    if (with_key) {
        key = parse_string(at);
        skip_space(at);
        if (!key || !take(at, ":")) {
            free(key);
            return NULL;
        }
    }
    node = parse_value(at);
    if (node)
        node->key = key;
    else
        free(key);
    return node;
}

static struct json *parse_children(const char **at, enum json_kind kind, const char *end)
{
    struct json *parent = new_node(kind, 0), **slot = &parent->children;

    skip_space(at);
    if (take(at, end))
        return parent;
    do {
        *slot = parse_member(at, kind == JSON_OBJECT);
        if (!*slot) {
            json_free(parent);
            return NULL;
        }
        slot = &(*slot)->next;
        skip_space(at);
    } while (take(at, ","));
    if (take(at, end))
        return parent;
    json_free(parent);
    return NULL;
}

static struct json *parse_number(const char **at)
{
    char *end;
    double number = strtod(*at, &end);

    if (end == *at)
        return NULL;
    *at = end;
    return new_node(JSON_NUMBER, number);
}

static struct json *parse_text(const char **at)
{
    struct json *node;
    char *text = parse_string(at);

    if (!text)
        return NULL;
    node = new_node(JSON_STRING, 0);
    node->text = text;
    return node;
}

static struct json *parse_value(const char **at)
{
    skip_space(at);
    if (take(at, "{"))
        return parse_children(at, JSON_OBJECT, "}");
    if (take(at, "["))
        return parse_children(at, JSON_ARRAY, "]");
    if (**at == '"')
        return parse_text(at);
    if (take(at, "null"))
        return new_node(JSON_NULL, 0);
    if (take(at, "true"))
        return new_node(JSON_BOOL, 1);
    if (take(at, "false"))
        return new_node(JSON_BOOL, 0);
    return parse_number(at);
}

struct json *json_parse(const char *text)
{
    struct json *node = parse_value(&text);

    skip_space(&text);
    if (*text) {
        json_free(node);
        return NULL;
    }
    return node;
}

void json_free(struct json *node)
{
    struct json *next;

    for (; node; node = next) {
        next = node->next;
        json_free(node->children);
        free(node->text);
        free(node->key);
        free(node);
    }
}

void json_append(struct json *parent, const char *key, struct json *node)
{
    struct json **slot = &parent->children;

    while (*slot)
        slot = &(*slot)->next;
    node->key = key ? strdup(key) : NULL;
    *slot = node;
}

const struct json *json_member(const struct json *object, const char *key)
{
    const struct json *node = object && object->kind == JSON_OBJECT ? object->children : NULL;

    while (node && strcmp(node->key, key) != 0)
        node = node->next;
    return node;
}

const struct json *json_at(const struct json *array, int position)
{
    const struct json *node = array && array->kind == JSON_ARRAY && position >= 0 ? array->children : NULL;

    while (node && position-- > 0)
        node = node->next;
    return node;
}

int json_length(const struct json *array)
{
    const struct json *node = array && array->kind == JSON_ARRAY ? array->children : NULL;
    int length = 0;

    for (; node; node = node->next)
        length++;
    return length;
}

const char *json_error(const struct json *node)
{
    const struct json *error = json_member(node, "error");

    return error && error->kind == JSON_STRING ? error->text : NULL;
}

const struct json *json_path(const struct json *node, const char *path)
{
    char key[64];
    size_t length;

    while (node && *path && node->kind != JSON_NULL && !json_error(node)) {
        length = strcspn(path, ".");
        if (length >= sizeof key)
            return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        node = json_member(node, key);
        path += length + (path[length] == '.');
    }
    return node;
}
