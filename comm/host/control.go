package host

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goddp/goddp/comm/backend"
)

// A link's control connection carries frames: a length of 4 bytes, a kind of
// one byte, and the body. It is silent while all goes well and memory is known.
const (
	frameBye     = iota + 1 // the sender left in good order
	frameBroke              // the sender's group broke: a notice
	frameSegment            // a descriptor comes along: id and size of a segment, 8 bytes each
	frameRetire             // no call will refer to a segment any more: its id
	frameAsk                // the sender asks whom the receiver's collective waits for
	frameWaits              // the answer: ranks, 4 bytes each
)

// maxFrame bounds a frame's body.
const maxFrame = 64 << 10

func frame(kind byte, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 5+len(body)), uint32(len(body)))
	return append(append(b, kind), body...)
}

func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("control frame of %d bytes, at most %d", n, maxFrame)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[4], body, err
}

// notice is why a rank's group broke, as it tells the others. At most one of
// the pointers is set; Text says what none of them can.
type notice struct {
	From     int                  // the rank that broke first, as far as the sender knows
	Call     *backend.Fingerprint // the call that failed, of rank Rank
	Rank     int
	Name     string
	Timeout  *backend.TimeoutError
	Mismatch *backend.MismatchError
	Lost     *lostNotice
	Usage    *backend.UsageError // the error, or one within it, that Text says
	Text     string
	Kind     string // of kinds, where Text stands for an error of that
}

type lostNotice struct {
	Peer int
	Left bool
	Text string
}

// toNotice puts cause in words that another process understands.
func toNotice(from int, cause error) notice {
	n := notice{From: from, Text: cause.Error()}
	var call *backend.CallError
	if errors.As(cause, &call) {
		n.Rank, n.Call, n.Name, n.Text = call.Rank, &call.Call, call.Name, call.Err.Error()
	}
	var lost *backend.PeerLostError
	var aborted *backend.AbortedError
	switch {
	case errors.As(cause, &aborted):
		n.From, n.Text = aborted.By, aborted.Err.Error()
	case errors.As(cause, &lost):
		n.Lost = &lostNotice{Peer: lost.Peer, Left: lost.Left}
		if lost.Err != nil {
			n.Lost.Text = lost.Err.Error()
		}
	case errors.As(cause, &n.Timeout), errors.As(cause, &n.Mismatch):
	}
	errors.As(cause, &n.Usage)
	switch {
	case errors.Is(cause, backend.ErrPeerLost):
		n.Kind = "lost"
	case errors.Is(cause, backend.ErrTimeout):
		n.Kind = "timeout"
	}
	return n
}

// kinds are what an error may match that is told on as a text.
var kinds = map[string]error{"timeout": backend.ErrTimeout, "lost": backend.ErrPeerLost}

// told is an error of another process.
type told struct {
	text string
	kind error // that it matches; may be nil
}

func (e *told) Error() string { return e.text }

func (e *told) Unwrap() error { return e.kind }

// err is the cause that n tells of.
func (n notice) err() error {
	var cause error
	switch {
	case n.Lost != nil:
		lost := &backend.PeerLostError{Peer: n.Lost.Peer, Left: n.Lost.Left}
		if n.Lost.Text != "" {
			lost.Err = errors.New(n.Lost.Text)
		}
		cause = lost
	case n.Timeout != nil:
		cause = n.Timeout
	case n.Mismatch != nil:
		cause = n.Mismatch
	case n.Usage != nil:
		cause = &backend.AbortedError{By: n.From, Err: &told{n.Text, n.Usage}}
	default:
		cause = &backend.AbortedError{By: n.From, Err: &told{n.Text, kinds[n.Kind]}}
	}
	if n.Call != nil {
		return &backend.CallError{Rank: n.Rank, Call: *n.Call, Name: n.Name, Err: cause}
	}
	return cause
}

// encode returns what fits into a frame: of a cause that does not, its text alone.
func (n notice) encode() []byte {
	b := n.marshal()
	if len(b) <= maxFrame {
		return b
	}
	const room = maxFrame / 16 // JSON takes up to six bytes for one
	short := notice{
		From: n.From, Call: n.Call, Rank: n.Rank, Kind: n.Kind,
		Name: n.Name[:min(len(n.Name), room)], Text: n.Text[:min(len(n.Text), room)],
	}
	if n.Mismatch != nil {
		m := *n.Mismatch
		m.All = nil
		short.Mismatch = &m
	}
	return short.marshal()
}

func (n notice) marshal() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // plain data
	}
	return b
}

func decodeNotice(b []byte) (n notice, err error) {
	if err := json.Unmarshal(b, &n); err != nil {
		return n, err
	}
	if n.Mismatch != nil && len(n.Mismatch.All) > maxAll {
		return n, fmt.Errorf("notice of a mismatch among %d ranks, at most %d", len(n.Mismatch.All), maxAll)
	}
	return n, nil
}

// maxAll is more calls than a notice has room for.
const maxAll = maxFrame / 64
