# Horovod asks for C++14; the headers of torch have needed C++17 since torch 2.1. Giving C++14 the
# flag of C++17 builds the released source as it is.
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_USER_MAKE_RULES_OVERRIDE_CUDA "${CMAKE_CURRENT_LIST_DIR}/cuda.cmake")
# Where build.sh says so, Horovod sees a torch without CUDA, and no toolkit. It has no setting for that:
# with an nvcc on the machine it takes all of CUDA, and stops if the rest of the toolkit is not there.
if(DEFINED ENV{DDL_HOROVOD_NO_CUDA})
  if(DEFINED ENV{HOROVOD_WITH_PYTORCH})
    # Half of the time goes into reading the headers of torch and Eigen again for each file.
    set(CMAKE_UNITY_BUILD TRUE)
    list(APPEND PYTHON_EXECUTABLE "${CMAKE_CURRENT_LIST_DIR}/no_cuda.py")
  endif()
  set(CMAKE_CUDA_COMPILER NOTFOUND)
  set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
endif()
