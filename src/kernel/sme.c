/* The two routines that a compiler's SME code calls and that not every C library brings: a weak version of each, for
 * inside the program or library only. Procedure Call Standard for the Arm 64-bit Architecture, "SME support routines".
 *  __arm_tpidr2_save: whoever left its ZA to be saved later (TPIDR2_EL0 points to where and how many rows) gets it
 *    saved now. May change x14 to x17 only.
 *  __arm_get_current_vg: the vector length in units of 64 bits, for unwinders; 0 outside streaming mode, where our
 *    code keeps nothing in scalable vectors. May change x0 only. */
#include "kernel/levels.h"

#if defined(__aarch64__) && defined(SLUICE_HAVE_SME)

#if defined(__APPLE__)
#define BEGIN(name) ".globl _" name "\n.private_extern _" name "\n.weak_definition _" name "\n.p2align 2\n_" name ":\n"
#define END(name) ""
#else
#define BEGIN(name) ".weak " name "\n.hidden " name "\n.type " name ", %function\n.p2align 2\n" name ":\n"
#define END(name) ".size " name ", . - " name "\n"
#endif

__asm__(".text\n"
        ".arch_extension sme\n"
        BEGIN("__arm_tpidr2_save")
        "mrs x14, tpidr2_el0\n"
        "cbz x14, 2f\n"
        "ldr x16, [x14]\n"
        "cbz x16, 2f\n"
        "ldrh w17, [x14, #8]\n"
        "mov w15, wzr\n"
        "1: cmp w15, w17\n"
        "b.hs 2f\n"
        "str za[w15, 0], [x16]\n"
        "addsvl x16, x16, #1\n"
        "add w15, w15, #1\n"
        "b 1b\n"
        "2: ret\n"
        END("__arm_tpidr2_save")
        BEGIN("__arm_get_current_vg")
        "mrs x0, svcr\n"
        "ands x0, x0, #1\n"
        "b.eq 3f\n"
        "cntd x0\n"
        "3: ret\n"
        END("__arm_get_current_vg")
        ".arch_extension nosme\n");

#else
typedef int sl_sme_is_for_arm64;
#endif
