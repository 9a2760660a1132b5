/* A library that answers as NVML does, for the real pynvml to load: `libnvidia-ml.so.1` on LD_LIBRARY_PATH.

   FAKE_NVML names a file with one device a line:  memory_bytes nvlinks nvlink_version pcie_generation pcie_lanes mig product
   A negative number means that the driver does not support the question. Signatures and codes are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9 };
typedef struct { long long memory; int index, links, version, generation, lanes, mig; char product[96]; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
static Device devices[16];
static int count;

int nvmlInitWithFlags(unsigned flags) {
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    if (!file) return DRIVER_NOT_LOADED;
    Device *d = devices;
    for (count = 0; fscanf(file, "%lld %d %d %d %d %d %95[^\n]", &d->memory, &d->links, &d->version, &d->generation,
                           &d->lanes, &d->mig, d->product) == 7; count++, d++) d->index = count;
    fclose(file);
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "590.00"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **found) {
    if (index >= (unsigned)count) return INVALID_ARGUMENT;
    *found = &devices[index];
    return SUCCESS;
}
static int number(int value, unsigned *found) { *found = value; return value < 0 ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceGetName(Device *d, char *text, unsigned size) { snprintf(text, size, "%s", d->product); return SUCCESS; }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned size) { snprintf(text, size, "GPU-%d", d->index); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(Device *d, Memory *found) {
    *found = (Memory){d->memory, d->memory, 0};
    return d->memory < 0 ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *pending) { *pending = 0; return number(d->mig, now); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *found) { return number(d->generation, found); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *found) { return number(d->lanes, found); }
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *found) {
    *found = (int)link < d->links;
    return d->links < 0 ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetNvLinkVersion(Device *d, unsigned link, unsigned *found) { return number(d->version, found); }
