# libsluice.so from the objects of the static library. Its export list is read off the public headers: a function
# that is not declared there stays inside.
file(GLOB headers ${CMAKE_SOURCE_DIR}/include/sluice/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
set(exports "")
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(REGEX MATCHALL "sl_[a-z0-9_]+\\(" calls "${text}")
  foreach(call IN LISTS calls)
    string(REPLACE "(" ";\n" symbol "${call}")
    string(APPEND exports "    ${symbol}")
  endforeach()
endforeach()
if(APPLE) # one name a line, as its linker knows it
  string(REGEX REPLACE " +(sl_[a-z0-9_]+);" "_\\1" exports "${exports}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/sluice.map CONTENT "${exports}" @ONLY)
else()
  if(exports)
    string(PREPEND exports "  global:\n")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/sluice.map CONTENT "{\n${exports}  local: *;\n};\n" @ONLY)
endif()

add_library(sluice_shared SHARED $<TARGET_OBJECTS:sluice_core>)
set_target_properties(sluice_shared PROPERTIES OUTPUT_NAME sluice VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${CMAKE_BINARY_DIR}/sluice.map
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(sluice_shared PRIVATE sluice_flags)
if(APPLE) # zig's linker takes the option and exports everything all the same
  target_link_options(sluice_shared PRIVATE -Wl,-exported_symbols_list,${CMAKE_BINARY_DIR}/sluice.map)
else()
  target_link_options(sluice_shared PRIVATE -Wl,--version-script=${CMAKE_BINARY_DIR}/sluice.map)
endif()
install(TARGETS sluice_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
