/* A library of operators for ONNX Runtime: optkit.test::Bound(x) = x / (1 + |x|), of floats.
   It declares the part of onnxruntime_c_api.h that it uses: functions of OrtApi keep their places,
   so they are called by number. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { FLOAT = 1, REQUIRED = 0, API_VERSION = 10 };
enum { CREATE_DOMAIN = 26, ADD_OPERATOR = 27, ADD_DOMAIN = 28, DATA = 51, DIMENSION_COUNT = 61,
       DIMENSIONS = 62, ELEMENT_COUNT = 64, TYPE_AND_SHAPE = 65, INPUT = 90, OUTPUT = 91,
       RELEASE_TYPE_AND_SHAPE = 99 };

typedef void *Status;
typedef const void *const *Api;
typedef struct { Api (*get_api)(uint32_t version); } ApiBase;

typedef struct Operator {
  uint32_t version;
  void *(*create_kernel)(const struct Operator *, Api, const void *info);
  const char *(*name)(const struct Operator *);
  const char *(*provider)(const struct Operator *);
  int (*input_type)(const struct Operator *, size_t);
  size_t (*input_count)(const struct Operator *);
  int (*output_type)(const struct Operator *, size_t);
  size_t (*output_count)(const struct Operator *);
  void (*compute)(void *kernel, void *context);
  void (*destroy)(void *kernel);
  int (*input_form)(const struct Operator *, size_t);
  int (*output_form)(const struct Operator *, size_t);
} Operator;

static Api api;

static void *create(const Operator *op, Api given, const void *info) { (void)op; (void)info; api = given; return &api; }
static const char *name(const Operator *op) { (void)op; return "Bound"; }
static const char *provider(const Operator *op) { (void)op; return NULL; }
static int type(const Operator *op, size_t index) { (void)op; (void)index; return FLOAT; }
static size_t one(const Operator *op) { (void)op; return 1; }
static int form(const Operator *op, size_t index) { (void)op; (void)index; return REQUIRED; }
static void destroy(void *kernel) { (void)kernel; }

static void compute(void *kernel, void *context) {
  const void *input; void *output, *shape; float *x, *y; size_t rank, count; int64_t sizes[16];
  (void)kernel;
  ((Status (*)(void *, size_t, const void **))api[INPUT])(context, 0, &input);
  ((Status (*)(const void *, void **))api[TYPE_AND_SHAPE])(input, &shape);
  ((Status (*)(void *, size_t *))api[DIMENSION_COUNT])(shape, &rank);
  ((Status (*)(void *, int64_t *, size_t))api[DIMENSIONS])(shape, sizes, rank);
  ((Status (*)(void *, size_t *))api[ELEMENT_COUNT])(shape, &count);
  ((void (*)(void *))api[RELEASE_TYPE_AND_SHAPE])(shape);
  ((Status (*)(void *, size_t, const int64_t *, size_t, void **))api[OUTPUT])(context, 0, sizes, rank, &output);
  ((Status (*)(const void *, void **))api[DATA])(input, (void **)&x);
  ((Status (*)(void *, void **))api[DATA])(output, (void **)&y);
  for (size_t i = 0; i < count; i++) y[i] = x[i] / (1 + fabsf(x[i]));
}

static Operator bound = {API_VERSION, create, name, provider, type, one, type, one, compute, destroy, form, form};

Status RegisterCustomOps(void *options, const ApiBase *base) {
  Api now = base->get_api(API_VERSION);
  void *domain; Status status;
  if ((status = ((Status (*)(const char *, void **))now[CREATE_DOMAIN])("optkit.test", &domain))) return status;
  if ((status = ((Status (*)(void *, const Operator *))now[ADD_OPERATOR])(domain, &bound))) return status;
  return ((Status (*)(void *, void *))now[ADD_DOMAIN])(options, domain);
}
