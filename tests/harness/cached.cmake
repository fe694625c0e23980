# What was compiled before comes from the cache, keyed by content; for the builds of tests and benches.
# Without ccache they compile.
find_program(CCACHE ccache)
if(CCACHE)
  set(CACHE_FOLDER $ENV{EPFABRIC_CACHE})
  if(NOT CACHE_FOLDER)
    set(CACHES $ENV{XDG_CACHE_HOME})
    if(NOT CACHES)
      set(CACHES $ENV{HOME}/.cache)
    endif()
    set(CACHE_FOLDER ${CACHES}/epfabric)
  endif()
  cmake_path(SET TREE NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
  # Paths below the tree count as relative, so that another clone has the same keys.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_DIR=${CACHE_FOLDER}/ccache CCACHE_BASEDIR=${TREE} CCACHE_NOHASHDIR=1
    CCACHE_MAXSIZE=4G ${CCACHE})
endif()
