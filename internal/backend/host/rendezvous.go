package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
)

// silence is how long a peer's host may not answer before it counts as lost.
const silence = 20 * time.Second

// address is where a rank can be reached while the group is being made.
type address struct {
	Host string   // ranks of the same host may share memory; "": never
	Unix string   // abstract socket
	TCP  []string // tried in turn
}

// meeting is the making of a group out of processes.
type meeting struct {
	group  *Group
	key    []byte       // of the group: who has it belongs to it
	shm    sharedMemory // nil: this rank cannot share memory
	links  []*link
	joined chan *link    // from every peer that dialled this rank
	done   chan struct{} // closed when no more connections are wanted
	wg     sync.WaitGroup
}

// joinLinks makes the network of g: a link between every two ranks, dialled
// by the higher one, and a board if all share memory.
func joinLinks(ctx context.Context, g *Group) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &meeting{group: g, links: make([]*link, g.cfg.Size), joined: make(chan *link), done: make(chan struct{})}
	defer func() {
		close(m.done)
		cancel()
		m.wg.Wait()
		if err != nil {
			m.release()
		}
	}()
	m.key = g.cfg.Control.Key()
	addrs, err := m.publish(ctx)
	if err != nil {
		return err
	}
	if err := m.linkUp(ctx, addrs); err != nil {
		return err
	}
	n := &linkNet{group: g, links: m.links, desk: m.shm}
	n.wire = wire{group: g, rank: g.cfg.Rank, size: g.cfg.Size, links: m.links, ctx: g.ctx}
	shared, err := m.agree(ctx)
	if err != nil {
		return err
	}
	if shared {
		n.board = n.desk
		n.board.adopt(m.links)
		n.table = table{board: n.board, rank: g.cfg.Rank, size: g.cfg.Size}
	}
	g.net = n
	for _, l := range m.links {
		if l != nil && l.desk != nil {
			go l.listen(func(err error) { // until the network is closed, which waits for it
				g.state.Report(fmt.Errorf("rank %d cannot take memory that rank %d shares with it: %w", g.inJob(g.cfg.Rank), g.inJob(l.peer), err))
			})
		}
	}
	return nil
}

// release undoes what there is of the network.
func (m *meeting) release() {
	for _, l := range m.links {
		if l != nil {
			l.close()
		}
	}
}

// cause is the reason why ctx ended rather than what that made fail.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && c != nil {
		return c
	}
	return err
}

// publish opens this rank's listeners, which close with the meeting, and
// exchanges addresses with the other ranks.
func (m *meeting) publish(ctx context.Context) ([]address, error) {
	g := m.group
	var own address
	if key, err := hostKey(); err == nil {
		if g.opts.HostID != "" {
			key = g.opts.HostID
		}
		if m.shm, err = newSharedMemory(g); err == nil {
			l, err := net.Listen("unix", "@goddp-"+rand.Text())
			if err != nil {
				return nil, err
			}
			own.Host, own.Unix = key, l.Addr().String()
			m.accept(l, true)
		} else {
			g.log.Warn("no shared memory: using TCP between the ranks of this host", "rank", g.cfg.Rank, "error", err)
		}
	}
	listen := g.opts.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	m.accept(l, false)
	if own.TCP, err = coordinator.Reachable(l.Addr().(*net.TCPAddr)); err != nil {
		return nil, err
	}
	value, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	values, err := g.cfg.Control.Gather(ctx, "host/address", value)
	if err != nil {
		return nil, err
	}
	addrs := make([]address, g.cfg.Size)
	for r, v := range values {
		if err := json.Unmarshal(v, &addrs[r]); err != nil {
			return nil, fmt.Errorf("address of rank %d: %w", r, err)
		}
	}
	return addrs, nil
}

// linkUp dials the lower ranks and waits for the higher ones to dial.
func (m *meeting) linkUp(ctx context.Context, addrs []address) error {
	rank := m.group.cfg.Rank
	type dialled struct {
		link *link
		err  error
	}
	results := make(chan dialled)
	for peer := range rank {
		m.wg.Go(func() {
			l, err := m.dial(ctx, peer, addrs[rank], addrs[peer])
			select {
			case results <- dialled{l, err}:
			case <-m.done:
				if l != nil {
					l.close()
				}
			}
		})
	}
	for range len(addrs) - 1 {
		select {
		case d := <-results:
			if d.err != nil {
				return cause(ctx, d.err)
			}
			m.links[d.link.peer] = d.link
		case l := <-m.joined:
			m.links[l.peer] = l
		case <-ctx.Done():
			var missing []int
			for peer, l := range m.links {
				if l == nil && peer != rank {
					missing = append(missing, peer)
				}
			}
			return fmt.Errorf("no connection with ranks %v: %w", missing, context.Cause(ctx))
		}
	}
	return nil
}

// agree tells whether all ranks share memory with all others. All ranks have
// all their links when it returns.
func (m *meeting) agree(ctx context.Context) (bool, error) {
	g := m.group
	own := "shared"
	for _, l := range m.links {
		if l != nil && l.desk == nil {
			own = "linked"
		}
	}
	values, err := g.cfg.Control.Gather(ctx, "host/linked", []byte(own))
	if err != nil {
		return false, err
	}
	for _, v := range values {
		if string(v) != "shared" {
			return false, nil
		}
	}
	return true, nil
}
