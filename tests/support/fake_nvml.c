/* libnvidia-ml.so.1 without a driver: answers from the text file that FAKE_NVML names (see fake_nvml.py). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MAX_DEVICES = 64, MAX_FIELDS = 64 };

typedef struct { char key[40], value[104]; unsigned step; } field_t;
typedef struct { field_t fields[MAX_FIELDS]; int count; } device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } busy_t;
typedef struct { char bus_id_legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info_t;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, status;
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_value_t;

static device_t machine, devices[MAX_DEVICES];
static int device_count, users;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static const char *get(const device_t *device, const char *key) {
    for (int i = 0; i < device->count; i++)
        if (!strcmp(device->fields[i].key, key)) return device->fields[i].value;
    return "none";
}
static void put(device_t *device, const char *key, const char *value) {
    if (device->count == MAX_FIELDS) abort();
    field_t *field = &device->fields[device->count++];
    field->step = 0;
    snprintf(field->key, sizeof field->key, "%s", key);
    snprintf(field->value, sizeof field->value, "%s", value);
}
static void load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    device_t *current = &machine;
    machine.count = device_count = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *equals = strchr(line, '=');
        if (line[0] == '[') {
            if (device_count == MAX_DEVICES) abort();
            current = &devices[device_count];
            current->count = 0;
            device_count++;
        } else if (equals) {
            *equals = 0;
            put(current, line, equals + 1);
        }
    }
    fclose(file);
}
static int text(device_t *device, const char *key, char *out, unsigned size) {
    const char *value = get(device, key);
    if (!strcmp(get(device, "lost"), "1")) return GPU_IS_LOST;
    if (!strcmp(value, "none")) return NOT_SUPPORTED;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}
/* "345|1980|lost" answers one after the other, call by call, and then the last for good */
static const char *next(device_t *device, const char *key) {
    for (int i = 0; i < device->count; i++) {
        field_t *field = &device->fields[i];
        const char *value = field->value;
        if (strcmp(field->key, key)) continue;
        for (unsigned n = 0; n < field->step && strchr(value, '|'); n++) value = strchr(value, '|') + 1;
        if (strchr(value, '|')) field->step++;
        return value;
    }
    return "none";
}
static int number(device_t *device, const char *key, unsigned long long *out) {
    const char *value = next(device, key);
    if (!strcmp(get(device, "lost"), "1") || !strncmp(value, "lost", 4)) return GPU_IS_LOST;
    if (!strncmp(value, "none", 4)) return NOT_SUPPORTED;
    if (!strncmp(value, "clock*", 6)) { /* so much more a second */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *out = (unsigned long long)(strtod(value + 6, NULL) * ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec));
        return SUCCESS;
    }
    *out = strtoull(value, NULL, 10);
    return SUCCESS;
}
static int small(device_t *device, const char *key, unsigned *out) {
    unsigned long long value = 0;
    int status = number(device, key, &value);
    if (status == SUCCESS) *out = (unsigned)value;
    return status;
}

int nvmlInitWithFlags(unsigned flags) {
    unsigned long long error = 0;
    (void)flags;
    pthread_mutex_lock(&loading);
    if (!users++) load();
    pthread_mutex_unlock(&loading);
    number(&machine, "init_error", &error);
    return (int)error;
}
int nvmlShutdown(void) {
    pthread_mutex_lock(&loading);
    if (users) users--;
    pthread_mutex_unlock(&loading);
    return SUCCESS;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(&machine, "driver", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(unsigned *out) { return small(&machine, "cuda", out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = (unsigned)device_count;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    if ((int)index >= device_count) return INVALID_ARGUMENT;
    *out = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **out) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(get(&devices[i], "uuid"), uuid)) return *out = &devices[i], SUCCESS;
    return NOT_FOUND;
}
int nvmlDeviceGetName(device_t *device, char *out, unsigned size) { return text(device, "name", out, size); }
int nvmlDeviceGetUUID(device_t *device, char *out, unsigned size) { return text(device, "uuid", out, size); }
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    unsigned long long total, used = 0;
    int status = number(device, "memory_mib", &total);
    if (status != SUCCESS) return status;
    number(device, "memory_used_mib", &used);
    *out = (memory_t){total << 20, (total - used) << 20, used << 20};
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *out) {
    memory_t memory;
    int status = nvmlDeviceGetMemoryInfo(device, &memory);
    if (status == SUCCESS) *out = (memory_v2_t){out->version, memory.total, 0, memory.free, memory.used};
    return status;
}
int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    int status = small(device, "mig", current);
    if (status == SUCCESS) *pending = *current;
    return status;
}
int nvmlDeviceGetPowerManagementLimit(device_t *device, unsigned *out) { return small(device, "power_limit_mw", out); }
int nvmlDeviceGetPowerManagementDefaultLimit(device_t *device, unsigned *out) {
    return small(device, "power_limit_default_mw", out);
}
int nvmlDeviceGetEnforcedPowerLimit(device_t *device, unsigned *out) { return small(device, "power_limit_mw", out); }
int nvmlDeviceGetPowerUsage(device_t *device, unsigned *out) { return small(device, "power_mw", out); }
int nvmlDeviceGetTotalEnergyConsumption(device_t *device, unsigned long long *out) {
    return number(device, "energy_mj", out);
}
/* NVML_FI_DEV_POWER_INSTANT 186, of the scope GPU 0 */
int nvmlDeviceGetFieldValues(device_t *device, int count, field_value_t *values) {
    if (!strcmp(get(device, "lost"), "1")) return GPU_IS_LOST;
    for (field_value_t *each = values; each < values + count; each++) {
        each->type = 1; /* unsigned int */
        each->status = each->field != 186 || each->scope ? NOT_SUPPORTED : small(device, "power_instant_mw", &each->value.ui);
    }
    return SUCCESS;
}
/* NVML_CLOCK_GRAPHICS 0, SM 1, MEM 2, VIDEO 3; graphics and SM run together */
static int clock_of(device_t *device, int type, const char *sm, const char *mem, unsigned *out) {
    return type > 2 ? NOT_SUPPORTED : small(device, type == 2 ? mem : sm, out);
}
int nvmlDeviceGetClockInfo(device_t *device, int type, unsigned *out) {
    return clock_of(device, type, "clock_sm_mhz", "clock_mem_mhz", out);
}
int nvmlDeviceGetMaxClockInfo(device_t *device, int type, unsigned *out) {
    return clock_of(device, type, "clock_sm_max_mhz", "clock_mem_max_mhz", out);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) {
    return number(device, "clock_event_reasons", out);
}
int nvmlDeviceGetEccMode(device_t *device, unsigned *current, unsigned *pending) {
    *pending = 1;
    return small(device, "ecc", current);
}
int nvmlDeviceGetPersistenceMode(device_t *device, unsigned *out) { return small(device, "persistence", out); }
int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned *out) {
    return sensor ? INVALID_ARGUMENT : small(device, "temperature_c", out);
}
int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    int status = small(device, "utilization", &out->gpu);
    out->memory = 0;
    return status;
}
/* processes: pid:MiB with commas between */
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *out) {
    const char *value = get(device, "processes");
    unsigned found = 0, room = *count;
    if (!strcmp(get(device, "lost"), "1")) return GPU_IS_LOST;
    if (!strcmp(value, "none")) return NOT_SUPPORTED;
    while (*value) {
        char *end;
        process_t process = {(unsigned)strtoul(value, &end, 10), 0, 0, 0};
        if (*end != ':') abort();
        process.used = strtoull(end + 1, &end, 10) << 20;
        if (found < room) out[found] = process;
        found++;
        value = *end == ',' ? end + 1 : end;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
/* process_utilization: pid:percent, or pid:percent:seconds ago, with commas between */
int nvmlDeviceGetProcessUtilization(device_t *device, busy_t *out, unsigned *count, unsigned long long since_us) {
    const char *value = get(device, "process_utilization");
    unsigned found = 0, room = out ? *count : 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!strcmp(get(device, "lost"), "1")) return GPU_IS_LOST;
    if (!strcmp(value, "none")) return NOT_SUPPORTED;
    while (*value) {
        char *end;
        busy_t busy = {(unsigned)strtoul(value, &end, 10), now.tv_sec * 1000000ull + now.tv_nsec / 1000, 0, 0, 0, 0};
        if (*end != ':') abort();
        busy.sm = (unsigned)strtoul(end + 1, &end, 10);
        if (*end == ':') busy.at_us -= strtoull(end + 1, &end, 10) * 1000000ull;
        if (busy.at_us > since_us && found++ < room) out[found - 1] = busy;
        value = *end == ',' ? end + 1 : end;
    }
    *count = found;
    return !found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device_t *device, int type, int counter, unsigned long long *out) {
    if (type != 1) return NOT_SUPPORTED; /* uncorrected ones only */
    return counter ? NOT_SUPPORTED : number(device, "ecc_uncorrected", out);
}
int nvmlDeviceGetPciInfo_v3(device_t *device, pci_info_t *out) {
    memset(out, 0, sizeof *out);
    return text(device, "pci_bus_id", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetCurrPcieLinkGeneration(device_t *device, unsigned *out) { return small(device, "pcie_generation", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t *device, unsigned *out) {
    return small(device, "pcie_generation_max", out) == SUCCESS ? SUCCESS : small(device, "pcie_generation", out);
}
int nvmlDeviceGetCurrPcieLinkWidth(device_t *device, unsigned *out) { return small(device, "pcie_width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t *device, unsigned *out) {
    return small(device, "pcie_width_max", out) == SUCCESS ? SUCCESS : small(device, "pcie_width", out);
}
