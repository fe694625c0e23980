# The native core: its sources and what they need. Included by agent/CMakeLists.txt and tests/native.
find_package(PkgConfig REQUIRED)
pkg_check_modules(LIBFABRIC REQUIRED IMPORTED_TARGET libfabric>=1.17)
find_package(Threads REQUIRED)

set(EPFABRIC_NATIVE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(EPFABRIC_CORE_SOURCES "")
foreach(name barrier blob budget core core_room cut_writes dissemination epoch fabric ibverbs lookout nic_ledger nic_room
    proxy region remote_transport segment session verbs_device verbs_endpoint verbs_setup)
  list(APPEND EPFABRIC_CORE_SOURCES ${EPFABRIC_NATIVE_DIR}/${name}.cc)
endforeach()

function(epfabric_core_target target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE ${EPFABRIC_NATIVE_DIR}
    ${EPFABRIC_NATIVE_DIR}/../../kernels/epfabric/include)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Werror)
  target_link_libraries(${target} PRIVATE PkgConfig::LIBFABRIC Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
