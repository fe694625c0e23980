// The C++ tests of the native core; test_cpp.py builds and runs them, plain and under sanitizers.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
