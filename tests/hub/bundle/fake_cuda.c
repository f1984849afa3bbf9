/* A CUDA driver of paper: its GPU's memory is this process's, and it knows a few kernels by name.
 *
 * scale(out, in, n, factor)   out[i] = factor * in[i]
 * add(out, a, b)              out[i] = a[i] + b[i], one element a thread, as many threads as were launched
 * Any other kernel does nothing. FAKE_CUDA_LOG names a file that gets a line a launch. A module whose text contains
 * "illegal access" breaks the context when it is launched: every later call fails, as on a GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int bad; } module_t;
typedef struct { char name[64]; int bad; int shared; } function_t;
static int sticky = 0, launches = 0;

#define GUARD if (sticky) return sticky
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorName(int code, const char **text) {
  *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "NVIDIA Paper"); return device != 7; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 13 ? 1980000 : -1;
  return device != 7;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)141 << 30; return device != 7; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &sticky; return device != 7; }
int cuCtxSetCurrent(void *context) { return context != &sticky; }
int cuCtxSynchronize(void) { return sticky; }
int cuModuleLoadData(void **module, const char *image) {
  GUARD;
  if (!strlen(image)) return 200;
  module_t *made = calloc(1, sizeof *made);
  made->bad = strstr(image, "illegal access") != 0;
  *module = made;
  return 0;
}
int cuModuleUnload(void *module) { GUARD; free(module); return 0; }
int cuModuleGetFunction(void **function, module_t *module, const char *name) {
  GUARD;
  if (!strcmp(name, "missing")) return 500;
  function_t *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
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
int cuMemAlloc_v2(uint64_t *address, size_t size) { GUARD; *address = (uint64_t)malloc(size); return 0; }
int cuMemFree_v2(uint64_t address) { GUARD; free((void *)address); return 0; }
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) { memset((void *)address, value, size); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { GUARD; memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { GUARD; memcpy(to, (void *)from, size); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &launches; return flags != 0; }
int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(int)); return flags != 0; }
int cuEventRecord(int *event, void *stream) { GUARD; *event = launches; return stream != &launches; }
int cuEventSynchronize(void *event) { GUARD; return event == 0; }
int cuEventElapsedTime(float *ms, int *start, int *end) { GUARD; *ms = 0.25f * (*end - *start); return 0; }

typedef struct { function_t *f; unsigned size[7]; void **params; } node_t;
typedef struct { int count; node_t nodes[256]; } graph_t;
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
  if (f->bad) sticky = 700;
  unsigned threads = size[0] * size[1] * size[2] * size[3] * size[4] * size[5];
  if (!strcmp(f->name, "scale")) {
    float *out = *(float **)params[0], *in = *(float **)params[1], factor = *(float *)params[3];
    for (int i = 0; i < *(int32_t *)params[2]; i++) out[i] = factor * in[i];
  } else if (!strcmp(f->name, "add")) {
    float *out = *(float **)params[0], *a = *(float **)params[1], *b = *(float **)params[2];
    for (unsigned i = 0; i < threads; i++) out[i] = a[i] + b[i];
  }
  return 0;
}

int cuLaunchKernel(function_t *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
  GUARD;
  if (stream != &launches || extra || (int)shared > f->shared || !gx || !gy || !gz || bx * by * bz > 1024) return 1;
  node_t node = {f, {gx, gy, gz, bx, by, bz, shared}, params};
  if (!capturing) return execute(f, node.size, params);
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
