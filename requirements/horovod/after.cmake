# Horovod asks for C++14; the headers of torch have needed C++17 since torch 2.1. Giving C++14 the
# flag of C++17 builds the released source as it is.
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
