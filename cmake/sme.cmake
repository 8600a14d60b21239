# Whether the compiler knows Arm's SME, as zig's clang 22 does and gcc 12 and clang 14 do not. Kernels and level are left
# out otherwise.
include(CheckCSourceCompiles)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # linking would want what src/kernel/sme.c has
check_c_source_compiles("#include <arm_sme.h>
__attribute__((target(\"sme\"))) __arm_new(\"za\") __arm_locally_streaming void f(const signed char *a)
{
    svint8_t v = svld1_s8(svptrue_b8(), a);
    svmopa_za32_s8_m(0, svptrue_b8(), svptrue_b8(), v, v);
}" SLUICE_COMPILER_HAS_SME)
unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
if(SLUICE_COMPILER_HAS_SME)
  target_compile_definitions(sluice_flags INTERFACE SLUICE_HAVE_SME)
endif()
