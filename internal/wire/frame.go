package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Encode returns the encoding of a message. It panics if JSON cannot represent the message.
func Encode(message any) []byte {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	return append(binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text))), text...)
}

// Decode reads a message of at most `most` bytes of JSON into the value that message points to. It
// returns io.EOF if the stream has ended before the message.
func Decode(r io.Reader, most int, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if int64(n) > int64(most) {
		return fmt.Errorf("received a message of %d bytes, want at most %d", n, most)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return json.Unmarshal(text, message)
}
