// Package handshaketest says what a listener on the way of a connection sees.
package handshaketest

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// CheckProtected returns an error unless sent, the first bytes that one end of a connection wrote,
// are those of a handshake of package handshake, and then nothing but encrypted records.
func CheckProtected(sent []byte) error {
	const messages = 2 // of each end
	rest := sent
	for i := range messages {
		if len(rest) < 2 || len(rest) < 2+int(binary.LittleEndian.Uint16(rest)) || !bytes.HasPrefix(rest[2:], []byte("goddp/h")) {
			return fmt.Errorf("message %d of the handshake begins with %.16q", i, rest)
		}
		rest = rest[2+binary.LittleEndian.Uint16(rest):]
	}
	records := 0
	for ; len(rest) >= 4; records++ {
		n := binary.BigEndian.Uint32(rest)
		if n == 0 || n > 32<<10 {
			return fmt.Errorf("byte %d begins no record: %.16q", len(sent)-len(rest), rest)
		}
		rest = rest[min(len(rest), 4+int(n)+16):] // a header, encrypted data, a tag
	}
	if records == 0 {
		return fmt.Errorf("no record after %d bytes", len(sent))
	}
	return nil
}
