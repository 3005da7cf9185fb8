package host

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Frames announce shared memory to a peer, on a separate connection. A frame is a length of 4
// bytes, a kind of one byte, and the body. Frames are only sent when shared memory is added or
// freed.
const (
	frameSegment = iota + 1 // a new segment: its id and size, 8 bytes each, with the file descriptor
	frameRetire             // a segment that no later call uses; the body is its id
)

// maxFrame is the maximum size of a frame's body, in bytes.
const maxFrame = 16

func frame(kind byte, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 5+len(body)), uint32(len(body)))
	return append(append(b, kind), body...)
}

// frameSizeError is the error of readFrame for a frame whose body has more than maxFrame bytes.
type frameSizeError uint32

func (e frameSizeError) Error() string {
	return fmt.Sprintf("the peer sent a frame with a body of %d bytes, want at most %d", uint32(e), maxFrame)
}

func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return 0, nil, frameSizeError(n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[4], body, err
}
