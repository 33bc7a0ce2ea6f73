# CMake reads this file first; it has CMake read after.cmake right after Horovod's project().
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/after.cmake")
# Files of Gloo cannot be compiled together: two of its headers define the same name.
set(CMAKE_PROJECT_gloo_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/gloo.cmake")
