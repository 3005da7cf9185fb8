package host

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A link's connection for shared memory carries frames: a length of 4 bytes, a kind of one
// byte, and the body. It is silent while all memory is known.
const (
	frameSegment = iota + 1 // a descriptor comes along: id and size of a segment, 8 bytes each
	frameRetire             // no call will refer to a segment any more: its id
)

// maxFrame bounds a frame's body.
const maxFrame = 16

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
		return 0, nil, fmt.Errorf("frame of %d bytes, at most %d", n, maxFrame)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[4], body, err
}
