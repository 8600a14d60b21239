# Cross-building for macOS by `zig cc`. tools/macos.sh gives SLUICE_MACOS: a folder with bin/cc, bin/ar, bin/ranlib
# for SLUICE_MACOS_ARCH; pkg-config finds the libraries by PKG_CONFIG_LIBDIR.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR ${SLUICE_MACOS_ARCH})
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SLUICE_MACOS SLUICE_MACOS_ARCH)
set(CMAKE_C_COMPILER ${SLUICE_MACOS}/bin/cc)
set(CMAKE_AR ${SLUICE_MACOS}/bin/ar)
set(CMAKE_RANLIB ${SLUICE_MACOS}/bin/ranlib)
# CMake insists on one for Darwin; only an installation, which happens on the Mac itself, would run it.
set(CMAKE_INSTALL_NAME_TOOL ${SLUICE_MACOS}/bin/ranlib)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
