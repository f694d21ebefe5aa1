// What torch's C++ asks of CUDA before it makes a tensor, a node of the graph, a stream or pinned memory, answered for cards that are only
// pretended: each thread has a current card, streams and events do nothing, and pinned memory is host memory that remembers that it is pinned.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

std::atomic<int> cards{2};
thread_local DeviceIndex current_card = 0;

Device card(DeviceIndex index) {
  return Device(DeviceType::CUDA, index < 0 ? current_card : index);
}

Stream default_stream(Device device) {
  return Stream(Stream::DEFAULT, card(device.index()));
}

struct CardGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::CUDA;
  CardGuard() = default;
  explicit CardGuard(DeviceType) {}
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    Device before = card(-1);
    uncheckedSetDevice(device);
    return before;
  }
  Device getDevice() const override { return card(-1); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current_card = device.index();
  }
  Stream getStream(Device device) const override { return default_stream(device); }
  Stream getDefaultStream(Device device) const override { return default_stream(device); }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override { return default_stream(device); }
  Stream getNewStream(Device device, int = 0) const override { return default_stream(device); }
  Stream exchangeStream(Stream stream) const override { return default_stream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(cards.load()); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
};

// Pinned host memory: ranges by their first address, so that a view of one is pinned too.
struct PinnedAllocator final : c10::Allocator {
  static std::map<const char*, size_t>& ranges() {
    static auto* held = new std::map<const char*, size_t>();
    return *held;
  }
  static std::mutex& lock() {
    static auto* held = new std::mutex();
    return *held;
  }
  static void give_back(void* memory) {
    if (memory == nullptr) return;
    std::lock_guard<std::mutex> own(lock());
    ranges().erase(static_cast<const char*>(memory));
    std::free(memory);
  }
  static bool holds(const void* address) {
    const char* place = static_cast<const char*>(address);
    std::lock_guard<std::mutex> own(lock());
    auto after = ranges().upper_bound(place);
    if (after == ranges().begin()) return false;
    --after;
    return place < after->first + after->second;
  }
  c10::DataPtr allocate(size_t bytes) override {
    size_t room = (bytes + 63) / 64 * 64;
    if (room == 0) room = 64;
    void* memory = std::aligned_alloc(64, room);
    TORCH_CHECK(memory != nullptr, "no memory left to pin");
    std::lock_guard<std::mutex> own(lock());
    ranges()[static_cast<const char*>(memory)] = room;
    return {memory, memory, &give_back, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
};

struct CardHooks final : at::CUDAHooksInterface {
  explicit CardHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return cards.load(); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(cards.load()); }
  DeviceIndex current_device() const override { return current_card; }
  DeviceIndex getCurrentDevice() const override { return current_card; }
  void setCurrentDevice(DeviceIndex index) const override { current_card = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    DeviceIndex before = current_card;
    if (index >= 0) current_card = index;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::holds(address); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* held = new PinnedAllocator();
    return held;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex = -1) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex = -1) const override { return at::detail::createCPUGenerator(); }
};
// Which kernel scaled_dot_product_attention takes on these cards: the memory-efficient one, and the plain formula for what it does not know.
int64_t attention_kernel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
                         double, bool, std::optional<double>, bool grouped) {
  auto& context = at::globalContext();
  int64_t math = static_cast<int64_t>(at::SDPBackend::math);
  bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || grouped || (!half && query.scalar_type() != at::kFloat)) return math;
  if (query.size(0) == 0 || query.size(2) == 0 || key.size(2) == 0) return math;
  if (query.stride(-1) != 1 || key.stride(-1) != 1 || value.stride(-1) != 1) return math;
  if (mask.has_value() && mask->defined() && mask->stride(-1) != 1) return math;
  int64_t step = half ? 8 : 4;
  if (context.userEnabledMemEfficientSDP() && query.size(-1) % step == 0 && value.size(-1) % step == 0) {
    return static_cast<int64_t>(at::SDPBackend::efficient_attention);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return math;
}
}  // namespace

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_kernel)
}

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, CardGuard)
}

namespace at {
using PretendedHooks = ::CardHooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", PretendedHooks)
}  // namespace at

extern "C" {
int pretended_current_card() { return current_card; }
void pretended_choose_card(int index) { current_card = static_cast<DeviceIndex>(index); }
void pretended_set_cards(int count) { cards = count; }
}
