/* Runs programs of maskc inside of XLA's: a custom call is a list of launches with argument blocks.

   A program is made once, when XLA compiles (see native.py). Blocks hold every number; what differs
   from call to call is where buffers lie, and the places in the blocks that say so are listed. On a
   GPU, launches go to XLA's stream through the driver, which is opened at run time. Nothing waits
   for the device after the first call of a program on a stream. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xla/ffi/api/c_api.h>

enum { MADE = 128, MAX_BLOCK = 4096, MAX_MAPS = 16, SLOTS = 1024 };

/* ---------------------------------------------------------------- programs, as native.py has them */

typedef struct {
  int64_t at, buffer, shift; /* where in the block; negative buffers are tables */
} Place;

typedef struct {
  Place place;
  uint32_t rank, kind;
  uint64_t dims[5], strides[4];
  uint32_t box[5], step[5];
  int32_t mode[4]; /* interleave, swizzle, L2 promotion, fill */
} Map;

typedef struct Kernel {
  const void *code;
  const char *entry;
  int64_t shared;
  void *function;   /* CUkernel, once it is loaded */
  uint64_t devices; /* on which it may use `shared` bytes */
} Kernel;

typedef void HostEntry(void *block, int32_t threads);

typedef struct {
  int64_t clear; /* a buffer that is filled with zeros, or 0: a launch */
  int64_t clear_bytes;
  Kernel *kernel;
  HostEntry *host;
  uint32_t blocks, threads, shared, unused;
  const void *block;
  int64_t block_bytes, places_count, maps_count;
  const Place *places;
  const Map *maps;
} Step;

typedef struct {
  const void *host;
  int64_t bytes;
} Table;

typedef struct Copies { /* of the tables, for launches of one stream */
  void *context, *stream;
  struct Copies *next;
  uint64_t at[];
} Copies;

typedef struct Program {
  uint64_t key;
  int64_t given, made, steps_count, tables_count;
  const Step *steps;
  const Table *tables;
  Copies *copies;
  struct Program *next;
} Program;

static _Atomic(Program *) programs[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void maskc_add(Program *program) {
  pthread_mutex_lock(&lock);
  program->next = atomic_load(&programs[program->key % SLOTS]);
  atomic_store(&programs[program->key % SLOTS], program);
  pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------ what XLA gives */

static XLA_FFI_Error *failed(const XLA_FFI_Api *api, const char *format, const char *what, long n) {
  char text[256];
  snprintf(text, sizeof text, format, what, n);
  XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                    .message = text, .errc = XLA_FFI_Error_Code_INTERNAL};
  return api->XLA_FFI_Error_Create(&args);
}

/* Whether XLA only asks which version of its interface this was built for. */
static int asked(XLA_FFI_CallFrame *frame) {
  if (frame->extension_start == NULL) return 0; /* whose type has other names in other versions */
  if (frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return 1;
}

/* The program that the call names, and where its buffers lie: given from 0 on, made from MADE on. */
static XLA_FFI_Error *called(XLA_FFI_CallFrame *frame, Program **found, uint64_t *at) {
  uint64_t key = 0;
  if (frame->attrs.size == 1 && frame->attrs.types[0] == XLA_FFI_AttrType_SCALAR)
    key = *(uint64_t *)((XLA_FFI_Scalar *)frame->attrs.attrs[0])->value;
  Program *program = atomic_load(&programs[key % SLOTS]);
  while (program != NULL && program->key != key) program = program->next;
  if (program == NULL)
    return failed(frame->api, "maskc: this process has not made the program of this call%s", "", 0);
  if (program->given != frame->args.size || program->made != frame->rets.size)
    return failed(frame->api, "maskc: a call of another program%s (%ld arguments)", "",
                  (long)frame->args.size);
  for (int64_t i = 0; i < frame->args.size; i++)
    at[i] = (uint64_t)((XLA_FFI_Buffer *)frame->args.args[i])->data;
  for (int64_t i = 0; i < frame->rets.size; i++)
    at[MADE + i] = (uint64_t)((XLA_FFI_Buffer *)frame->rets.rets[i])->data;
  *found = program;
  return NULL;
}

static inline uint64_t address(const Place *place, const uint64_t *at, const uint64_t *tables) {
  return (place->buffer < 0 ? tables[-1 - place->buffer] : at[place->buffer]) +
         (uint64_t)place->shift;
}

static inline void fill(char *block, const Step *step, const uint64_t *at, const uint64_t *tables) {
  memcpy(block, step->block, (size_t)step->block_bytes);
  for (int64_t i = 0; i < step->places_count; i++) {
    uint64_t word = address(&step->places[i], at, tables);
    memcpy(block + step->places[i].at, &word, sizeof word);
  }
}

/* ----------------------------------------------------------------------------------------- CPUs */

XLA_FFI_Error *maskc_on_host(XLA_FFI_CallFrame *frame) {
  if (asked(frame)) return NULL;
  _Alignas(64) char block[MAX_BLOCK];
  uint64_t at[2 * MADE];
  Program *program;
  XLA_FFI_Error *error = called(frame, &program, at);
  if (error != NULL) return error;
  for (int64_t i = 0; i < program->steps_count; i++) {
    const Step *step = &program->steps[i];
    if (step->clear) {
      memset((void *)at[step->clear], 0, (size_t)step->clear_bytes);
      continue;
    }
    fill(block, step, at, NULL);
    step->host(block, (int32_t)step->threads);
  }
  return NULL;
}

/* ----------------------------------------------------------------------------------------- GPUs */

typedef int Status; /* CUresult */
static struct {
  void *library;
  Status (*stream_context)(void *, void **), (*current)(void **), (*push)(void *), (*pop)(void **);
  Status (*device)(int *), (*load)(void **, const void *, void *, void *, unsigned, void *, void *,
                                   unsigned);
  Status (*kernel)(void **, void *, const char *), (*allow)(int, int, void *, int);
  Status (*allocate)(uint64_t *, size_t), (*copy)(uint64_t, const void *, size_t, void *);
  Status (*clear)(uint64_t, unsigned char, size_t, void *);
  Status (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
  Status (*encode)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                   const uint32_t *, const uint32_t *, int, int, int, int);
} cuda;

#define FIND(member, name)                                                        \
  do {                                                                            \
    *(void **)&cuda.member = dlsym(library, name);                                \
    if (cuda.member == NULL) return name;                                         \
  } while (0)

/* Open the driver; the name of what it lacks, or NULL. A test names another library. */
const char *maskc_driver(const char *name) {
  void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) return name;
  FIND(stream_context, "cuStreamGetCtx");
  FIND(current, "cuCtxGetCurrent");
  FIND(push, "cuCtxPushCurrent_v2");
  FIND(pop, "cuCtxPopCurrent_v2");
  FIND(device, "cuCtxGetDevice");
  FIND(load, "cuLibraryLoadData");
  FIND(kernel, "cuLibraryGetKernel");
  FIND(allow, "cuKernelSetAttribute");
  FIND(allocate, "cuMemAlloc_v2");
  FIND(copy, "cuMemcpyHtoDAsync_v2");
  FIND(clear, "cuMemsetD8Async");
  FIND(launch, "cuLaunchKernel");
  FIND(encode, "cuTensorMapEncodeTiled");
  cuda.library = library;
  return NULL;
}

enum { DYNAMIC_SHARED = 8, FREE_SHARED = 48 * 1024 };

/* Load a kernel, for all devices, and let it use its shared memory on the current one. */
static const char *ready(Kernel *kernel, int device) {
  if (kernel->function == NULL) {
    void *library;
    if (cuda.load(&library, kernel->code, NULL, NULL, 0, NULL, NULL, 0))
      return "cuLibraryLoadData";
    if (cuda.kernel(&kernel->function, library, kernel->entry)) return "cuLibraryGetKernel";
  }
  uint64_t bit = 1ull << (device & 63);
  if (kernel->shared > FREE_SHARED && !(kernel->devices & bit)) {
    if (cuda.allow(DYNAMIC_SHARED, (int)kernel->shared, kernel->function, device))
      return "cuKernelSetAttribute";
    kernel->devices |= bit;
  }
  return NULL;
}

/* The tables of a program for one stream: at its first call they are sent, and kernels loaded.
   Launches of a stream run in order, so that they may share counters. */
static const char *copied(Program *program, void *context, void *stream, Copies **found) {
  for (Copies *each = program->copies; each != NULL; each = each->next)
    if (each->context == context && each->stream == stream) {
      *found = each;
      return NULL;
    }
  int device;
  const char *wrong = cuda.device(&device) ? "cuCtxGetDevice" : NULL;
  for (int64_t i = 0; i < program->steps_count && wrong == NULL; i++)
    if (program->steps[i].kernel != NULL) wrong = ready(program->steps[i].kernel, device);
  if (wrong != NULL) return wrong;
  Copies *made = malloc(sizeof(Copies) + sizeof(uint64_t) * (size_t)program->tables_count);
  if (made == NULL) return "malloc";
  for (int64_t i = 0; i < program->tables_count; i++) {
    const Table *table = &program->tables[i];
    if (cuda.allocate(&made->at[i], (size_t)table->bytes)) wrong = "cuMemAlloc";
    else if (cuda.copy(made->at[i], table->host, (size_t)table->bytes, stream))
      wrong = "cuMemcpyHtoDAsync";
    if (wrong != NULL) {
      free(made);
      return wrong;
    }
  }
  made->context = context, made->stream = stream, made->next = program->copies;
  *found = program->copies = made;
  return NULL;
}

static const char *launched(const Step *step, const uint64_t *at, const uint64_t *tables,
                            void *stream) {
  _Alignas(64) char block[MAX_BLOCK];
  _Alignas(64) char maps[128 * MAX_MAPS];
  void *arguments[2] = {block, maps};
  fill(block, step, at, tables);
  for (int64_t i = 0; i < step->maps_count; i++) {
    const Map *map = &step->maps[i];
    if (cuda.encode(maps + 128 * i, (int)map->kind, map->rank,
                    (void *)address(&map->place, at, tables), map->dims, map->strides, map->box,
                    map->step, map->mode[0], map->mode[1], map->mode[2], map->mode[3]))
      return "cuTensorMapEncodeTiled";
  }
  return cuda.launch(step->kernel->function, step->blocks, 1, 1, step->threads, 1, 1, step->shared,
                     stream, arguments, NULL)
             ? "cuLaunchKernel"
             : NULL;
}

static const char *enqueued(Program *program, const uint64_t *at, void *context, void *stream) {
  Copies *copies;
  pthread_mutex_lock(&lock);
  const char *wrong = copied(program, context, stream, &copies);
  pthread_mutex_unlock(&lock);
  for (int64_t i = 0; i < program->steps_count && wrong == NULL; i++) {
    const Step *step = &program->steps[i];
    if (!step->clear) wrong = launched(step, at, copies->at, stream);
    else if (step->clear_bytes &&
             cuda.clear(at[step->clear], 0, (size_t)step->clear_bytes, stream))
      wrong = "cuMemsetD8Async";
  }
  return wrong;
}

XLA_FFI_Error *maskc_on_gpu(XLA_FFI_CallFrame *frame) {
  if (asked(frame)) return NULL;
  uint64_t at[2 * MADE];
  Program *program;
  XLA_FFI_Error *error = called(frame, &program, at);
  if (error != NULL) return error;
  XLA_FFI_Stream_Get_Args args = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
                                  .ctx = frame->ctx};
  error = frame->api->XLA_FFI_Stream_Get(&args);
  if (error != NULL) return error;
  if (cuda.library == NULL)
    return failed(frame->api, "maskc: the CUDA driver was not opened%s", "", 0);
  void *context = NULL, *before = NULL;
  if (cuda.stream_context(args.stream, &context) || cuda.current(&before))
    return failed(frame->api, "maskc: the stream has no context%s", "", 0);
  if (before != context && cuda.push(context))
    return failed(frame->api, "maskc: %s failed", "cuCtxPushCurrent", 0);
  const char *wrong = enqueued(program, at, context, args.stream);
  if (before != context) cuda.pop(&before);
  return wrong == NULL ? NULL : failed(frame->api, "maskc: %s failed", wrong, 0);
}
