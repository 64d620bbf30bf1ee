/* CPUID answers without AVX-512, VNNI and AMX; if KEEP_AVX512 is defined, without AMX alone.

   Libraries choose their kernels by CPUID. A copy of such a library in which `int3; nop` stands for
   each `cpuid` asks this one instead, which is named in LD_PRELOAD. All runs at full speed; what
   would run without asking is not seen. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

/* bits of leaf 7: AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL (EBX); VBMI, VBMI2, VNNI, BITALG,
   VPOPCNTDQ (ECX); 4VNNIW, 4FMAPS, VP2INTERSECT, AMX, FP16 (EDX) */
#ifdef KEEP_AVX512
static const uint32_t EBX_7 = 0, ECX_7 = 0, EDX_7 = 1u << 22 | 1u << 24 | 1u << 25;
static const uint32_t EAX_7_1 = 1u << 21, EDX_7_1 = 1u << 8;
#else
static const uint32_t EBX_7 = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 |
                              1u << 30 | 1u << 31;
static const uint32_t ECX_7 = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const uint32_t EDX_7 = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 |
                              1u << 25;
static const uint32_t EAX_7_1 = ~0u, EDX_7_1 = ~0u;
#endif

static void mask(uint32_t leaf, uint32_t sub, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                 uint32_t *edx) {
  if (leaf == 7 && sub == 0) {
    *ebx &= ~EBX_7;
    *ecx &= ~ECX_7;
    *edx &= ~EDX_7;
  } else if (leaf == 7 && sub == 1) {
    *eax &= ~EAX_7_1; /* AVX-VNNI, AVX512-BF16, AMX-FP16 */
    *edx &= ~EDX_7_1; /* AVX-VNNI-INT8, AMX-COMPLEX, AVX10 */
  } else if (leaf == 0x24 && EBX_7) {
    *eax = *ebx = *ecx = *edx = 0; /* AVX10 */
  }
}

static struct sigaction before;

static void on_trap(int signal, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *at = (const uint8_t *)registers[REG_RIP]; /* behind the int3 */
  if (at[-1] != 0xcc || at[0] != 0x90) {
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(signal, info, context);
    return;
  }
  uint32_t leaf = registers[REG_RAX], sub = registers[REG_RCX], a, b, c, d;
  __cpuid_count(leaf, sub, a, b, c, d);
  mask(leaf, sub, &a, &b, &c, &d);
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 1;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGTRAP, &action, &before);
}

/* glibc's own answer (sys/platform/x86.h): EAX to EDX as the processor says, and as enabled */
struct leaf { uint32_t raw[4], active[4]; };

const struct leaf *__x86_get_cpuid_feature_leaf(unsigned index) {
  static struct leaf masked[16];
  const struct leaf *(*ask)(unsigned) = dlsym(RTLD_NEXT, "__x86_get_cpuid_feature_leaf");
  const struct leaf *found = ask(index);
  if (index != 1 && index != 6) return found;
  masked[index] = *found;
  for (uint32_t *half = masked[index].raw; half <= masked[index].active;
       half += masked[index].active - masked[index].raw)
    mask(7, index == 1 ? 0 : 1, &half[0], &half[1], &half[2], &half[3]);
  return &masked[index];
}
