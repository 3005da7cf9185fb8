package backendtest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goddp/goddp/comm/failure"
)

const roundLine = "round"

// ReduceRounds runs an AllReduce of count ones, again and again. It prints a line after every
// hundredth.
func ReduceRounds(m *Rank, count, rounds int, timeout time.Duration) error {
	c, err := m.Ones(count)
	if err != nil {
		return err
	}
	for i := range rounds {
		again := *c
		again.Timeout = timeout
		if err := m.Run(&again); err != nil {
			return err
		}
		if i%100 == 0 {
			fmt.Println(roundLine)
		}
	}
	return nil
}

// Describe returns a short text of how a worker ended.
func Describe(err error) string {
	var lost *failure.PeerLostError
	var timeout *failure.TimeoutError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &lost):
		return fmt.Sprint("lost ", lost.Peer, " ", lost.Left)
	case errors.As(err, &timeout):
		return fmt.Sprint("timeout ", timeout.Waiting)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
