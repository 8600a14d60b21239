# Cross-building for arm64 Linux by `zig cc`, static. tools/arm64.sh gives SLUICE_ARM64: a folder with bin/cc, bin/ar,
# bin/ranlib; pkg-config finds the libraries by PKG_CONFIG_LIBDIR.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SLUICE_ARM64)
set(CMAKE_C_COMPILER ${SLUICE_ARM64}/bin/cc)
set(CMAKE_AR ${SLUICE_ARM64}/bin/ar)
set(CMAKE_RANLIB ${SLUICE_ARM64}/bin/ranlib)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
