/* A CUDA driver of paper: its GPU's memory is this process's, and it runs two kinds of modules.
 *
 * A module that is a shared library (what `paper_nvcc.py` makes of CUDA source) has its kernels executed on the CPU,
 * thread by thread; a launch takes a millisecond for each of its blocks and each warp of one, so that few have to be timed.
 * Of any other module it knows a few kernels by name, of a quarter of a millisecond each:
 * scale(out, in, n, factor)   out[i] = factor * in[i]
 * add(out, a, b)              out[i] = a[i] + b[i], one element a thread, as many threads as were launched
 * Any other kernel does nothing. FAKE_CUDA_LOG names a file that gets a line a launch.
 *
 * Faults. A module whose text contains "illegal access" breaks the context when it is launched: every later call fails,
 * as on a GPU; so do "an assert" and "a memory error". One with "a hang" never ends, one with "too much memory" cannot be launched. A file beside this library
 * changes the card: `lost` (no call works), `exclusive` (no context), `prohibited` and `private` (its mode), `mig` (its name), `full`,
 * `old` (its driver), `slow` (half its speed), `shared` (another process is on it).
 *
 * NVML's functions are here too, as far as tchub calls them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <elf.h>

#ifndef CARD
#define CARD "NVIDIA Paper"
#define SM 90
#endif

typedef void (*call_t)(void **, const unsigned *);
typedef struct { int bad; void *library; } module_t;
typedef struct { char name[64]; int bad; int shared; call_t call; int parameters; } function_t;
typedef struct { double at; } event_t;
static int sticky = 0, launches = 0;
static double now = 0;  /* milliseconds of the card's work */
enum { ILLEGAL = 1, HANG, HUNGRY, ASSERT, ECC };

static int beside(const char *name) {
  Dl_info info;
  char path[4096];
  dladdr((void *)beside, &info);
  snprintf(path, sizeof path, "%s", info.dli_fname);
  snprintf(strrchr(path, '/') + 1, 64, "%s", name);
  return access(path, F_OK) == 0;
}

#define GUARD do { if (sticky) return sticky; if (beside("lost")) return 999; } while (0)
int cuInit(unsigned flags) { return beside("lost") ? 999 : flags ? 1 : 0; }
int cuGetErrorName(int code, const char **text) {
  *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 500 ? "CUDA_ERROR_NOT_FOUND"
        : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
        : code == 710 ? "CUDA_ERROR_ASSERT" : code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE"
        : code == 999 ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : 0; }
int cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, length, beside("mig") ? CARD " MIG 1g.5gb" : CARD);
  return device != 7;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 75: *value = SM / 10; break;
    case 76: *value = SM % 10; break;
    case 16: *value = 132; break;
    case 13: *value = 1980000; break;
    case 1: *value = 1024; break;
    case 8: *value = 49152; break;
    case 12: *value = 65536; break;
    case 10: *value = 32; break;
    case 20: *value = beside("prohibited") ? 2 : beside("private") ? 3 : 0; break;
    case 36: *value = 5001000; break;
    case 37: *value = 256; break;
    case 38: *value = 4 << 10; break;
    default: *value = -1;
  }
  return device != 7;
}
int cuDeviceGetPCIBusId(char *text, int length, int device) { snprintf(text, length, "0000:65:00.0"); return device != 7; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)141 << 30; return device != 7; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
  *total = (size_t)141 << 30;
  *free = beside("full") ? 100 << 20 : *total;
  return sticky;
}
int cuDriverGetVersion(int *version) { *version = beside("old") ? 12040 : 13000; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &sticky; return beside("exclusive") ? 46 : device != 7; }
int cuCtxSetCurrent(void *context) { return context != &sticky; }

static void *opened(const char *image) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  char path[] = "/tmp/paper-XXXXXX";
  int file = mkstemp(path);
  size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  if (write(file, image, size) != (ssize_t)size) abort();
  close(file);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  unlink(path);
  return library;
}
int cuModuleLoadData(module_t **module, const char *image) {
  GUARD;
  if (!strlen(image)) return 200;
  module_t *made = calloc(1, sizeof *made);
  const char *text = image;
  if (!memcmp(image, ELFMAG, SELFMAG)) {
    if (!(made->library = opened(image))) return 200;
    text = dlsym(made->library, "paper_fault");
  }
  made->bad = strstr(text, "illegal access") ? ILLEGAL : strstr(text, "a hang") ? HANG : strstr(text, "too much memory") ? HUNGRY
            : strstr(text, "an assert") ? ASSERT : strstr(text, "a memory error") ? ECC : 0;
  *module = made;
  return 0;
}
int cuModuleUnload(module_t *module) { GUARD; if (module->library) dlclose(module->library); free(module); return 0; }
int cuModuleGetFunction(void **function, module_t *module, const char *name) {
  GUARD;
  if (!strcmp(name, "missing")) return 500;
  function_t *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  if (module->library) {
    char call[80];
    snprintf(call, sizeof call, "%s__call", name);
    if (!(made->call = (call_t)dlsym(module->library, call))) return 500;
    snprintf(call, sizeof call, "%s__count", name);
    made->parameters = *(const int *)dlsym(module->library, call);
  } else made->parameters = !strcmp(name, "scale") ? 4 : !strcmp(name, "add") ? 3 : 0;
  made->bad = module->bad;
  made->shared = 48 << 10;
  *function = made;
  return 0;
}
int cuFuncSetAttribute(function_t *function, int attribute, int value) {
  GUARD;
  if (attribute != 8) return 1;
  function->shared = value;
  return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) { GUARD; *address = (uint64_t)aligned_alloc(256, (size + 255) / 256 * 256); return 0; }
int cuMemFree_v2(uint64_t address) { GUARD; free((void *)address); return 0; }
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream) {
  GUARD;
  memset((void *)address, value, size);
  now += 100000;
  return stream != &launches;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { GUARD; memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { GUARD; memcpy(to, (void *)from, size); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
  GUARD;
  memcpy((void *)to, (void *)from, size);
  return stream != &launches;
}
int cuStreamWaitEvent(void *stream, event_t *event, unsigned flags) { GUARD; return event == 0 || flags; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &launches; return flags != 0; }
int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(event_t)); return flags != 0; }
/* A null stream is PyTorch's. */
int cuEventRecord(event_t *event, void *stream) { GUARD; event->at = now; return stream && stream != &launches; }
int cuEventSynchronize(void *event) { GUARD; return event == 0; }
int cuEventElapsedTime(float *ms, event_t *start, event_t *end) { GUARD; *ms = (float)(end->at - start->at); return 0; }

typedef struct { function_t *f; unsigned size[7]; void **params; } node_t;
typedef struct { int count; node_t nodes[4096]; } graph_t;
static graph_t *capturing = 0;

static int execute(function_t *f, const unsigned *size, void **params) {
  launches++;
  const char *log = getenv("FAKE_CUDA_LOG");
  if (log) {
    FILE *file = fopen(log, "a");
    fprintf(file, "%s", f->name);
    for (int i = 0; i < 7; i++) fprintf(file, " %u", size[i]);
    fprintf(file, "\n");
    fclose(file);
  }
  if (f->bad == ILLEGAL) sticky = 700;
  if (f->bad == ASSERT) sticky = 710;
  if (f->bad == ECC) sticky = 214;
  if (f->bad == HUNGRY) return 2;
  while (f->bad == HANG) pause();
  unsigned blocks = size[0] * size[1] * size[2], block = size[3] * size[4] * size[5];
  now += (f->call ? 1.0 * (blocks + (block + 31) / 32) : 0.25) * (beside("slow") ? 2 : 1);
  if (f->call) {
    f->call(params, size);
  } else if (!strcmp(f->name, "scale")) {
    float *out = *(float **)params[0], *in = *(float **)params[1], factor = *(float *)params[3];
    for (int i = 0; i < *(int32_t *)params[2]; i++) out[i] = factor * in[i];
  } else if (!strcmp(f->name, "add")) {
    float *out = *(float **)params[0], *a = *(float **)params[1], *b = *(float **)params[2];
    for (unsigned i = 0; i < blocks * block; i++) out[i] = a[i] + b[i];
  }
  return 0;
}

int cuLaunchKernel(function_t *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
  GUARD;
  if (stream != &launches || extra || (int)shared > f->shared || !gx || !gy || !gz || bx * by * bz > 1024) return 1;
  node_t node = {f, {gx, gy, gz, bx, by, bz, shared}, params};
  if (!capturing) return execute(f, node.size, params);
  if (capturing->count == 4096) return 1;
  uint64_t *values = calloc(f->parameters + 1, sizeof *values);  /* a graph has the values of this moment */
  node.params = calloc(f->parameters + 1, sizeof *node.params);
  for (int i = 0; i < f->parameters; i++) node.params[i] = memcpy(values + i, params[i], sizeof *values);
  capturing->nodes[capturing->count++] = node;
  return 0;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
  GUARD;
  capturing = calloc(1, sizeof *capturing);
  return stream != &launches || mode != 1;
}
int cuStreamEndCapture(void *stream, graph_t **graph) {
  GUARD;
  *graph = capturing;
  capturing = 0;
  return stream != &launches;
}
int cuGraphInstantiateWithFlags(graph_t **executable, graph_t *graph, unsigned long long flags) {
  GUARD;
  *executable = malloc(sizeof *graph);
  memcpy(*executable, graph, sizeof *graph);
  return flags != 0;
}
int cuGraphLaunch(graph_t *graph, void *stream) {
  GUARD;
  for (int i = 0; i < graph->count; i++) execute(graph->nodes[i].f, graph->nodes[i].size, graph->nodes[i].params);
  return stream != &launches;
}
int cuGraphExecDestroy(graph_t *executable) { GUARD; free(executable); return 0; }
int cuGraphDestroy(graph_t *graph) { GUARD; free(graph); return 0; }

/* NVML */
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } process_t;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = &sticky; return index != 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **card) { *card = &sticky; return strcmp(id, "0000:65:00.0") ? 6 : 0; }
int nvmlDeviceGetName(void *card, char *name, unsigned length) { snprintf(name, length, CARD); return card != &sticky; }
int nvmlDeviceGetClockInfo(void *card, int type, unsigned *mhz) { *mhz = beside("slow") ? 990 : 1590; return type != 1; }
int nvmlDeviceGetMaxClockInfo(void *card, int type, unsigned *mhz) { *mhz = 1590; return type != 1; }
int nvmlDeviceGetCurrentClocksEventReasons(void *card, unsigned long long *reasons) { *reasons = beside("slow") ? 0x24 : 1; return 0; }
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) { *milliwatts = 69800; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *card, unsigned *milliwatts) { *milliwatts = 70000; return 0; }
int nvmlDeviceGetMemoryInfo(void *card, unsigned long *bytes) { cuMemGetInfo_v2(&bytes[1], &bytes[0]); return 0; }
int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *celsius) { return 3; /* not supported */ }
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, process_t *processes) {
  unsigned room = *count;
  if (!beside("shared")) return *count = 0;
  *count = 2;
  if (room < 2) return 7;
  for (unsigned i = 0; i < 2; i++) processes[i] = (process_t){100 + i, 1 << 20, 0, 0};
  return 0;
}
