package reducer

import (
	"encoding/binary"
	"math"
	"slices"
	"syscall"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/half"
)

// status is what the ranks tell each other in every pass that reduces: words
// that are summed. The first are flags, one for each rank, raised where no rank
// may use the gradients. The next, as many, are excuses: their ranks have no pass
// of their own, and shadow those of the others. Two words follow, by which any rank asks
// all to stop. Where the Reducer looks for unused parameters there is one more for each parameter, which is not zero if some rank
// has a gradient for it. Where the words are a layout says: in the last bucket,
// behind the gradients, where they cost no reduction of their own, or apart.
type status struct {
	dev   device.Device
	ranks int
	words device.Tensor
	told  device.Buffer // for the host: the words of parameters, on their way to the device
	seen  device.Buffer // for the host: all words, once they are summed
	stale bool          // words may hold those of an earlier pass
}

// wordSize is the most that a word takes, whatever the last bucket's type.
const wordSize = 8

// stopSignals are the signals by which a rank may be asked to stop: each has a word. If
// both words are set, the ranks agree on the first.
var stopSignals = [stopWords]syscall.Signal{syscall.SIGTERM, syscall.SIGINT}

const stopWords = 2

// newStatus has memory on the host now: a driver may wait for the device before
// it gives such, and later a reduction may hang there.
func newStatus(dev device.Device, ranks, params int) (s status, err error) {
	s = status{dev: dev, ranks: ranks}
	if s.seen, err = dev.AllocHost((2*ranks + stopWords + params) * wordSize); err == nil && params > 0 {
		s.told, err = dev.AllocHost(params * wordSize)
	}
	return s, err
}

// len is the number of words.
func (s *status) len() int { return s.seen.Len() / wordSize }

// flags are the words that forbid.
func (s *status) flags() device.Tensor { return s.words.Range(0, s.ranks) }

// raise raises the flag of a rank.
func (s *status) raise(rank int) error { return s.mark(rank) }

// excuse tells that a rank shadows the others.
func (s *status) excuse(rank int) error { return s.mark(s.ranks + rank) }

// requestStop asks all ranks to stop because of sig.
func (s *status) requestStop(sig syscall.Signal) error {
	return s.mark(2*s.ranks + max(0, slices.Index(stopSignals[:], sig)))
}

func (s *status) mark(i int) error {
	return s.dev.Kernels().Fill(s.dev.Compute(), s.words.Range(i, i+1), 1)
}

// clean makes all words zero, if they may be something else.
func (s *status) clean() error {
	if !s.stale {
		return nil
	}
	s.stale = false
	return s.dev.Kernels().Fill(s.dev.Compute(), s.words, 0)
}

// tell sets the words of the parameters: absent are those that have no gradient
// here. The outcome of the pass before is known, so that told is free.
func (s *status) tell(absent []bool) error {
	word := one(s.words.DType)
	told := s.told.Slice(0, len(absent)*len(word))
	host := told.Host()
	clear(host)
	for i, is := range absent {
		if !is {
			copy(host[i*len(word):], word)
		}
	}
	used := s.words.Range(2*s.ranks+stopWords, s.len())
	return s.dev.Copy(s.dev.Compute(), used.Buf, told)
}

// show enqueues what shows the words to the host: in seen, behind the event.
func (s *status) show() (device.Event, error) {
	if err := s.dev.Copy(s.dev.Compute(), s.seen.Slice(0, s.words.Bytes()), s.words.Buf); err != nil {
		return nil, err
	}
	return s.dev.Compute().Mark(), nil
}

// set tells whether word i was seen to be other than zero.
func (s *status) set(i int) bool {
	size := s.words.DType.Size()
	return slices.ContainsFunc(s.seen.Host()[i*size:(i+1)*size], func(b byte) bool { return b != 0 })
}

// raised are the ranks whose flags were seen raised; nil if none was.
func (s *status) raised() []bool { return s.ranksSet(0) }

// excused are the ranks that were seen to shadow the others; nil if none did.
func (s *status) excused() []bool { return s.ranksSet(s.ranks) }

// ranksSet are the ranks whose words, the first of which is from, were seen set;
// nil for none.
func (s *status) ranksSet(from int) (ranks []bool) {
	for r := range s.ranks {
		if !s.set(from + r) {
			continue
		}
		if ranks == nil {
			ranks = make([]bool, s.ranks)
		}
		ranks[r] = true
	}
	return ranks
}

// used tells whether some rank was seen to have a gradient for parameter i.
func (s *status) used(i int) bool { return s.set(2*s.ranks + stopWords + i) }

// stopRequested is the signal because of which some rank was seen to ask all to stop; 0
// if none did.
func (s *status) stopRequested() syscall.Signal {
	for i, sig := range stopSignals {
		if s.set(2*s.ranks + i) {
			return sig
		}
	}
	return 0
}

// one is the number 1 as the device holds it.
func one(dt device.DType) []byte {
	switch e := binary.NativeEndian; dt {
	case device.Float64:
		return e.AppendUint64(nil, math.Float64bits(1))
	case device.Float16:
		return e.AppendUint16(nil, half.F16(1))
	case device.BFloat16:
		return e.AppendUint16(nil, half.BF16(1))
	default:
		return e.AppendUint32(nil, math.Float32bits(1))
	}
}
