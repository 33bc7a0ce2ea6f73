# Horovod asks nvcc for C++11; the headers of CUDA 13 want C++17. CMake reads this once it knows nvcc.
set(CMAKE_CUDA11_STANDARD_COMPILE_OPTION "-std=c++17")
