package wire

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener returns errors, one for each call, and nil as the connection of a call without an error.
type listener struct {
	net.Listener
	errs []error
}

func (l *listener) Accept() (net.Conn, error) {
	err := l.errs[0]
	if len(l.errs) > 1 {
		l.errs = l.errs[1:]
	}
	return nil, err
}

func TestAcceptOutlivesTemporaryFailures(t *testing.T) {
	served := 0
	Accept(&listener{errs: []error{nil, syscall.EMFILE, syscall.ECONNABORTED, nil, net.ErrClosed}}, nil, func(net.Conn) { served++ })
	if served != 2 {
		t.Errorf("%d connections were served, want 2", served)
	}
}

func TestAcceptEndsDuringFailures(t *testing.T) {
	done := make(chan struct{})
	close(done)
	Accept(&listener{errs: []error{errors.New("always")}}, done, func(net.Conn) { t.Error("a connection was served") })
}
