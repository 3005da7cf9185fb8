// Package handshaketest says what a listener on the way of a connection sees.
package handshaketest

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// CheckProtected returns an error unless sent, the first bytes that one end of a connection wrote,
// are those of a handshake of package handshake, and then nothing but records of TLS.
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
	for len(rest) > 0 {
		const changeCipherSpec, handshake, data = 20, 22, 23
		kind := rest[0]
		if kind != changeCipherSpec && kind != handshake && kind != data || len(rest) > 1 && rest[1] != 3 {
			return fmt.Errorf("byte %d is in no record of TLS: %.16q", len(sent)-len(rest), rest)
		}
		if len(rest) < 5 {
			break
		}
		rest = rest[min(len(rest), 5+int(binary.BigEndian.Uint16(rest[3:]))):]
		records++
	}
	if records == 0 {
		return fmt.Errorf("no record of TLS after %d bytes", len(sent))
	}
	return nil
}
