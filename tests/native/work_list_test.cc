// The list of what needs something done, against a plain one under random use.
#include "work_list.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "seed.h"

using namespace epfabric::agent;

namespace {
struct Thing {
  uint32_t place = 0;
};
using List = WorkList<Thing, &Thing::place>;
}  // namespace

TEST_CASE("a cursor sees every item that was there all the while, and none that is gone") {
  std::mt19937_64 random(epfabric::test::seed());
  std::vector<Thing> things(40);
  List list;
  list.reserve(things.size());
  for (int round = 0; round < 300; ++round) {
    List::Cursor cursor;
    std::vector<int> stayed(things.size()), seen(things.size());
    for (size_t i = 0; i < things.size(); ++i) stayed[i] = things[i].place != 0;
    for (Thing* at = list.at(cursor); at != nullptr; at = list.at(cursor)) {
      REQUIRE(at->place != 0);
      seen[static_cast<size_t>(at - things.data())] = 1;
      cursor.pass();
      for (uint64_t changes = random() % 3; changes > 0; --changes) {
        const size_t i = random() % things.size();
        if (random() % 3 == 0) {
          list.add(things[i]);
        } else {
          list.remove(things[i]);
          stayed[i] = 0;
        }
      }
    }
    size_t count = 0;
    for (size_t i = 0; i < things.size(); ++i) {
      CHECK((stayed[i] == 0 || seen[i] == 1));
      count += things[i].place != 0 ? 1 : 0;
    }
    CHECK(list.size() == count);
    for (size_t i = 0; i < 20; ++i) list.add(things[random() % things.size()]);
  }
}
