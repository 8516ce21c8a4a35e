#include "server/stream_dispatcher.h"

#include <utility>

namespace condense {

StreamDispatcher::StreamDispatcher() : thread_([this] { Run(); }) {}

StreamDispatcher::~StreamDispatcher() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.Signal();
  thread_.join();
}

void StreamDispatcher::Notify() {
  {
    MutexLock lock(&mutex_);
    notified_ = true;
  }
  wake_.Signal();
}

void StreamDispatcher::Add(std::shared_ptr<StreamReader> reader) {
  const StreamReader* key = reader.get();
  MutexLock lock(&mutex_);
  readers_.emplace(key, std::move(reader));
}

void StreamDispatcher::Remove(const StreamReader* reader) {
  std::shared_ptr<StreamReader> removed;  // dies after the lock is released
  MutexLock lock(&mutex_);
  const auto found = readers_.find(reader);
  if (found == readers_.end()) return;
  removed = std::move(found->second);
  readers_.erase(found);
}

int32_t StreamDispatcher::num_readers() const {
  MutexLock lock(&mutex_);
  return static_cast<int32_t>(readers_.size());
}

bool StreamDispatcher::CollectReady(std::vector<std::shared_ptr<StreamReader>>* ready) {
  MutexLock lock(&mutex_);
  while (!notified_ && !stopping_) wake_.Wait(&mutex_);
  notified_ = false;
  for (const auto& [key, reader] : readers_) {
    if (reader->Ready()) ready->push_back(reader);
  }
  return !stopping_;
}

void StreamDispatcher::Run() {
  std::vector<std::shared_ptr<StreamReader>> ready;
  while (CollectReady(&ready)) {
    for (const std::shared_ptr<StreamReader>& reader : ready) reader->Pump();
    ready.clear();
  }
}

}  // namespace condense
