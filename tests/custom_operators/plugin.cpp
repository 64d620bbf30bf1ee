// A library of TensorRT plugins with the operator of bound.c. It declares the part of TensorRT's
// plugin interface (IPluginV3 of TensorRT 10 and newer) that it uses: virtual functions keep their
// places. It compiles into an engine and computes nothing: no test has a device.
#include <cstddef>
#include <cstdint>

#ifndef NAME
#define NAME "Bound"
#endif

struct Kind { const char *name; int32_t major, minor; };
struct Fields { int32_t count; const void *fields; };
struct Dims { int32_t count; int64_t sizes[8]; };
struct Expressions { int32_t count; const void *sizes[8]; };
struct Tensor { Dims dims; int32_t type, format; float scale; };
struct Ranged { Tensor tensor; Dims least, most, optimum; };
enum { FLOAT = 0, HALF = 1, LINEAR = 0 };
static const Fields none{0, nullptr};

struct Versioned {
  virtual int32_t language() const noexcept { return 0; }
  virtual Kind kind() const noexcept = 0;
  virtual ~Versioned() noexcept = default;
};

struct Core : Versioned {
  Kind kind() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual const char *name() const noexcept { return NAME; }
  virtual const char *version() const noexcept { return "1"; }
  virtual const char *space() const noexcept { return ""; }
};

struct Build : Versioned {
  Kind kind() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual int32_t configure(const Ranged *, int32_t, const Ranged *, int32_t) noexcept { return 0; }
  virtual int32_t types(int32_t *out, int32_t, const int32_t *in, int32_t) const noexcept { return out[0] = in[0], 0; }
  virtual int32_t shapes(const Expressions *in, int32_t, const Expressions *, int32_t, Expressions *out, int32_t, void *) noexcept { return out[0] = in[0], 0; }
  virtual bool takes(int32_t at, const Ranged *io, int32_t, int32_t) noexcept {
    int32_t type = io[0].tensor.type;
    return io[at].tensor.format == LINEAR && io[at].tensor.type == type && (type == FLOAT || type == HALF);
  }
  virtual int32_t outputs() const noexcept { return 1; }
  virtual size_t workspace(const Ranged *, int32_t, const Ranged *, int32_t) const noexcept { return 0; }
  virtual int32_t tactics(int32_t *, int32_t) noexcept { return 0; }
  virtual int32_t tactic_count() noexcept { return 0; }
  virtual const char *timing_key() noexcept { return nullptr; }
  virtual int32_t format_limit() noexcept { return 100; }
  virtual const char *metadata() noexcept { return nullptr; }
};

struct Plugin;
struct Run : Versioned {
  Kind kind() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual int32_t set_tactic(int32_t) noexcept { return 0; }
  virtual int32_t resized(const Tensor *, int32_t, const Tensor *, int32_t) noexcept { return 0; }
  virtual int32_t enqueue(const Tensor *, const Tensor *, const void *const *, void *const *, void *, void *) noexcept { return 1; }
  virtual Plugin *attach(void *) noexcept;
  virtual const Fields *fields() noexcept { return &none; }
};

struct Plugin : Versioned {
  Core core; Build build; Run run;
  Kind kind() const noexcept override { return {"PLUGIN_V3", 1, 0}; }
  virtual Versioned *capability(int32_t type) noexcept {
    Versioned *all[] = {&core, &build, &run};
    return all[type];
  }
  virtual Plugin *clone() noexcept { return new Plugin; }
};
Plugin *Run::attach(void *) noexcept { return new Plugin; }

struct Creator : Versioned {
  Kind kind() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual Plugin *create(const char *, const Fields *, int32_t) noexcept { return new Plugin; }
  virtual const Fields *fields() noexcept { return &none; }
  virtual const char *name() const noexcept { return NAME; }
  virtual const char *version() const noexcept { return "1"; }
  virtual const char *space() const noexcept { return ""; }
};

extern "C" void setLoggerFinder(void *) {}
extern "C" Versioned *const *getCreators(int32_t &count) {
  static Creator creator;
  static Versioned *all[] = {&creator};
  count = 1;
  return all;
}
