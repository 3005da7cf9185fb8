package comm

import (
	"context"
	"fmt"
	"net"

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// connect creates the backend for the group's device: NCCL for a GPU, else the host backend. If CheckCalls is set,
// connect wraps the backend in a callChecker.
func (j *joiner) connect(ctx context.Context, cfg backend.Config) (be backend.Backend, err error) {
	if j.isPending {
		rank, size := cfg.Rank, cfg.Size
		defer func() {
			if err == nil {
				be = &pending{be, rank, size}
			}
		}()
		cfg.Rank, cfg.Size = 0, 1
	}
	if cfg.Device.Type() == device.CUDA {
		be, err = nccl.New(ctx, cfg, &nccl.Options{NoSmallAllReduce: j.env.NoSmallAllReduce})
	} else {
		var o *host.Options
		if o, err = j.hostOptions(); err != nil {
			return nil, backend.GiveUp(cfg.Control, err)
		}
		be, err = host.New(ctx, cfg, o)
	}
	if err != nil || !j.CheckCalls || j.isPending {
		return be, err
	}
	return newCallChecker(ctx, be, cfg), nil
}

// hostOptions returns the options of the host backend.
func (j *joiner) hostOptions() (*host.Options, error) {
	if j.local != nil && j.isPending {
		return &host.Options{InProcess: host.NewInProcess()}, nil
	}
	if j.local != nil {
		return &host.Options{InProcess: j.local.hub}, nil
	}
	listen, err := j.listenAddr()
	return &host.Options{HostID: j.env.HostID, Member: j.member, Unprotected: j.env.Security.Unprotected || j.member.Insecure, Listen: listen}, err
}

// listenAddr returns the address at which other hosts reach this rank's listeners, or "" if all ranks are on this host.
// Under golaunch, the agent provides the address. Under other launchers it is the local address from which this rank
// reaches the master.
func (j *joiner) listenAddr() (string, error) {
	w := j.world
	if j.oneHost {
		return "", nil
	}
	if j.agent.NodeAddr != "" {
		return net.JoinHostPort(j.agent.NodeAddr, "0"), nil
	}
	// Connecting a datagram socket sends no packet. It only looks up the route.
	c, err := net.Dial("udp", w.masterAddr())
	if err != nil {
		return "", fmt.Errorf("finding the network interface towards the master at %s: %w", w.masterAddr(), err)
	}
	defer c.Close()
	ip := c.LocalAddr().(*net.UDPAddr).IP
	if ip.IsLoopback() && !namesLoopback(w.MasterAddr) {
		return "", fmt.Errorf("the master address %s resolves to %v on this host, which other hosts cannot reach: set MASTER_ADDR to an address of the network", w.MasterAddr, ip)
	}
	return net.JoinHostPort(ip.String(), "0"), nil
}
