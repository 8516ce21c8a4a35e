#ifndef CONDENSE_CACHE_FLOAT_ARRAY_H_
#define CONDENSE_CACHE_FLOAT_ARRAY_H_

// A vector of floats that grows without setting what it grows by: for results that are written as a
// whole.

#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace condense {

template <typename T>
struct UninitializedAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };

  UninitializedAllocator() = default;
  template <typename U>
  UninitializedAllocator(const UninitializedAllocator<U>&) {}  // allocators hold nothing

  template <typename U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

// Elements that resize() adds are undefined until they are written.
using FloatArray = std::vector<float, UninitializedAllocator<float>>;

}  // namespace condense

#endif  // CONDENSE_CACHE_FLOAT_ARRAY_H_
