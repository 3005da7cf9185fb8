package host

import (
	"context"
	"net"
)

// SetDial has a rank open its connections by dial.
func (o *Options) SetDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	o.dial = dial
}
