package buckets

import (
	"encoding/binary"
	"math"
	"slices"
	"syscall"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
)

// status is a tensor of words that the ranks sum in every pass that reduces. It starts with one flag per
// rank; if any flag is raised, no rank may use the gradients. One shadow flag per rank follows; it says
// that the rank makes a shadow pass. Two words follow, by which any rank asks all ranks to stop. If the
// Reducer looks for unused parameters, one word per parameter follows; its sum is not zero if some rank
// has a gradient for the parameter. The layout decides where the words are: in the last bucket, after the
// gradients, where they need no separate reduction, or in separate memory.
type status struct {
	dev      device.Device
	ranks    int
	words    device.Tensor
	flags    device.Tensor // the bytes of the flags, without the shadow flags
	hostUsed device.Buffer // host memory: the words of parameters before they are copied to the device
	hostSums device.Buffer // host memory: a copy of all words after the sum over the ranks, and then of the refusal

	// refusal is the word of backend.Refusal, and gate a copy of the flags and of this word, which the device makes
	// when it has all reductions of a pass. Updates read the gate instead of the flags. Both are empty if the job does
	// not survive the loss of ranks.
	refusal device.Buffer
	gate    device.Buffer
}

// wordSize is the largest possible size of a word in bytes. If the status is in the last bucket, a word is
// an element of this bucket. If the status has its own memory, a word is a Float32.
const wordSize = 8

// stopSignals are the signals that ask a process to stop, and endRequest. Each of them has a word in the status. If
// several words are set, the ranks agree on the first of the list.
var stopSignals = [stopWords]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, endRequest}

const stopWords = 3

// newStatus allocates the host memory of a status. This must happen before the first pass: a driver may
// wait for the device when it allocates host memory, and during a pass a reduction may hang on the
// device.
func newStatus(dev device.Device, ranks, params int, refusal device.Buffer) (s status, err error) {
	s = status{dev: dev, ranks: ranks, refusal: refusal}
	if refusal.Len() > 0 {
		if s.gate, err = dev.Alloc(ranks*wordSize + refusal.Len()); err != nil {
			return s, err
		}
	}
	if s.hostSums, err = dev.AllocHost((2*ranks+stopWords+params)*wordSize + refusal.Len()); err == nil && params > 0 {
		s.hostUsed, err = dev.AllocHost(params * wordSize)
	}
	return s, err
}

// free frees the memory that newStatus has allocated.
func (s *status) free() {
	for _, b := range []device.Buffer{s.gate, s.hostSums, s.hostUsed} {
		if b.Len() > 0 {
			s.dev.Free(b)
		}
	}
}

// len returns the number of words in the status.
func (s *status) len() int { return (s.hostSums.Len() - s.refusal.Len()) / wordSize }

// raise raises the flag of a rank.
func (s *status) raise(rank int) error { return s.setWord(rank) }

// setShadow sets the shadow flag of a rank.
func (s *status) setShadow(rank int) error { return s.setWord(s.ranks + rank) }

// requestStop asks all ranks to stop because of sig.
func (s *status) requestStop(sig syscall.Signal) error {
	return s.setWord(2*s.ranks + max(0, slices.Index(stopSignals[:], sig)))
}

// setWord sets word i to 1.
func (s *status) setWord(i int) error {
	return s.dev.Kernels().Fill(s.dev.Compute(), s.words.Range(i, i+1), 1)
}

// clearStatus sets all words of the status to zero if they may hold other values.
func (r *Reducer) clearStatus() error {
	if !r.isStale {
		return nil
	}
	r.isStale = false
	d := r.pg.Device()
	return d.Kernels().Fill(d.Compute(), r.status.words, 0)
}

// setUsed sets the word of each parameter to 1 if this rank has a gradient for the parameter, and to 0
// otherwise. The list `states` says what the gradients hold.
// The caller must know the outcome of the previous pass, so that no copy from hostUsed is under way.
func (s *status) setUsed(states []gradsink.State) error {
	set := one(s.words.DType)
	used := s.hostUsed.Slice(0, len(states)*len(set))
	host := used.Host()
	clear(host)
	for i, state := range states {
		if state.Content == gradsink.Written {
			copy(host[i*len(set):], set)
		}
	}
	words := s.words.Range(2*s.ranks+stopWords, s.len())
	return s.dev.Copy(s.dev.Compute(), words.Buf, used)
}

// copyToHost enqueues a copy of the words to hostSums. hostSums is valid after the returned event.
func (s *status) copyToHost() (device.Event, error) {
	if err := s.copyOn(s.dev.Compute()); err != nil {
		return nil, err
	}
	return s.dev.Compute().Mark(), nil
}

// copyOn enqueues a copy of the words, and of the refusal, to hostSums on a stream.
func (s *status) copyOn(on device.Stream) error {
	err := s.dev.Copy(on, s.hostSums.Slice(0, s.words.Bytes()), s.words.Buf)
	if n := s.refusal.Len(); err == nil && n > 0 {
		err = s.dev.Copy(on, s.hostSums.Slice(s.words.Bytes(), n), s.gate.Slice(s.flags.Bytes(), n))
	}
	return err
}

// isGated reports whether the device decides if a pass is committed.
func (s *status) isGated() bool { return s.gate.Len() > 0 }

// closeGate enqueues the copies to the gate. The compute stream must wait for all reductions of the pass.
func (s *status) closeGate() error {
	if !s.isGated() {
		return nil
	}
	n := s.refusal.Len()
	err := s.dev.Copy(s.dev.Compute(), s.gate.Slice(0, s.flags.Bytes()), s.words.Buf.Slice(0, s.flags.Bytes()))
	if err == nil {
		err = s.dev.Copy(s.dev.Compute(), s.gate.Slice(s.flags.Bytes(), n), s.refusal)
	}
	return err
}

// isRefused reports whether the group had failed when the device had all reductions, so that the updates wrote nothing.
func (s *status) isRefused() bool {
	n := s.refusal.Len()
	return slices.ContainsFunc(s.hostSums.Host()[s.words.Bytes():s.words.Bytes()+n], func(b byte) bool { return b != 0 })
}

// isSet reports whether the sum of word i is not zero.
func (s *status) isSet(i int) bool {
	size := s.words.DType.Size()
	return slices.ContainsFunc(s.hostSums.Host()[i*size:(i+1)*size], func(b byte) bool { return b != 0 })
}

// raised returns, by rank, whether the rank's flag is raised. It returns nil if no flag is raised.
func (s *status) raised() []bool { return s.ranksSet(0) }

// shadows returns, by rank, whether the rank made a shadow pass. It returns nil if no rank did.
func (s *status) shadows() []bool { return s.ranksSet(s.ranks) }

// ranksSet returns, by rank, whether the word with index from+rank is set. It returns nil if none of
// these words is set.
func (s *status) ranksSet(from int) (ranks []bool) {
	for r := range s.ranks {
		if !s.isSet(from + r) {
			continue
		}
		if ranks == nil {
			ranks = make([]bool, s.ranks)
		}
		ranks[r] = true
	}
	return ranks
}

// isUsed reports whether some rank has a gradient for parameter i.
func (s *status) isUsed(i int) bool { return s.isSet(2*s.ranks + stopWords + i) }

// stopRequested returns the signal because of which some rank asks all ranks to stop. It returns 0 if no
// rank asks.
func (s *status) stopRequested() syscall.Signal {
	for i, sig := range stopSignals {
		if s.isSet(2*s.ranks + i) {
			return sig
		}
	}
	return 0
}

// The function one returns the bytes of the number 1 in type dt.
func one(dt device.DType) []byte {
	switch e := binary.NativeEndian; dt {
	case device.Float64:
		return e.AppendUint64(nil, math.Float64bits(1))
	case device.Float16:
		return e.AppendUint16(nil, kernels.F16(1))
	case device.BFloat16:
		return e.AppendUint16(nil, kernels.BF16(1))
	default:
		return e.AppendUint32(nil, math.Float32bits(1))
	}
}
