package host

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/rootcause"
	"github.com/goddp/goddp/internal/wire"
)

// silence is the time without an answer after which a peer's host counts as lost.
const silence = 20 * time.Second

// address says how to reach a rank during the bootstrap.
type address struct {
	Host string   // ranks with equal names may share memory; a rank with the name "" does not
	Unix string   // abstract unix socket
	TCP  []string // dialled in this order
}

// bootstrap connects a group of processes.
type bootstrap struct {
	group    *Group
	key      []byte       // the group's key, which authenticates every connection
	machine  string       // host name for comparison with peers; "" if unknown
	shm      sharedMemory // nil if this rank cannot share memory
	peers    []*peerConn
	incoming chan *peerConn // peers that dialled this rank
	done     chan struct{}  // closed when no more connections are accepted
	wg       sync.WaitGroup

	mu             sync.Mutex
	unshared       []int // peers on this host that cannot share memory with this rank
	unsharedReason error // the latest reason why a peer cannot share memory
}

// joinProcesses creates the network of g. Every pair of ranks connects; the higher rank dials.
func joinProcesses(ctx context.Context, g *Group) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &bootstrap{group: g, peers: make([]*peerConn, g.cfg.Size), incoming: make(chan *peerConn), done: make(chan struct{})}
	defer func() {
		close(b.done)
		cancel()
		b.wg.Wait()
		if err != nil {
			b.release()
		}
	}()
	b.key = g.cfg.Control.Key()
	addrs, err := b.exchangeAddresses(ctx)
	if err != nil {
		return err
	}
	if err := b.connectPeers(ctx, addrs); err != nil {
		return err
	}
	b.warnOfUnshared()
	n := &processNet{group: g, peers: b.peers, shm: b.shm}
	allRanks := make([]int, g.cfg.Size)
	for r := range allRanks {
		allRanks[r] = r
	}
	t := newTransfers(g, b.peers)
	n.overConns = newConnCollectives(t, allRanks)
	sharing, err := b.exchangeSharing(ctx)
	if err != nil {
		return err
	}
	if across := ranksAcross(sharing, g.cfg.Rank); across != nil {
		n.sharing = sharing[g.cfg.Rank]
		n.shm.connect(n.sharing, b.peers)
		n.inMemory = memCollectives{memoryGroup: n.shm, rank: slices.Index(n.sharing, g.cfg.Rank), size: len(n.sharing)}
		n.overConns.hosts = &hostLevels{shm: n.shm, inMemory: &n.inMemory, ranks: n.sharing, across: newConnCollectives(t, across)}
	}
	g.net = n
	for _, l := range b.peers {
		if l != nil && l.region != nil {
			go l.listen(func(err error) { // ends when processNet.close closes the connection
				g.state.Report(fmt.Errorf("rank %d cannot map the shared memory of rank %d: %w", g.jobRank(g.cfg.Rank), g.jobRank(l.peer), err))
			})
		}
	}
	return nil
}

// release closes the connections that were made.
func (b *bootstrap) release() {
	for _, l := range b.peers {
		if l != nil {
			l.close()
		}
	}
}

// cause returns ctx's cause if ctx has ended, else err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); err != nil && c != nil {
		return c
	}
	return err
}

// exchangeAddresses opens this rank's listeners and exchanges addresses with the other ranks. The
// listeners close when the bootstrap ends.
func (b *bootstrap) exchangeAddresses(ctx context.Context) ([]address, error) {
	g := b.group
	var self address
	if key, err := hostKey(); err == nil {
		name := hmac.New(sha256.New, b.key) // the hash hides the host's name from other readers
		fmt.Fprintf(name, "host %q %q", key, g.opts.HostID)
		b.machine = hex.EncodeToString(name.Sum(nil)[:16])
		if g.opts.HostID != "" {
			key = g.opts.HostID
		}
		if b.shm, err = newSharedMemory(g); err == nil {
			l, err := net.Listen("unix", "@goddp-"+rand.Text())
			if err != nil {
				return nil, err
			}
			self.Host, self.Unix = key, l.Addr().String()
			b.accept(l, true)
		} else if !errors.Is(err, errors.ErrUnsupported) {
			g.log.Warn("no shared memory: using TCP between the ranks of this host", "rank", g.cfg.Rank, "error", err)
		}
	}
	listen := g.opts.Listen
	if listen == "" {
		listen = net.JoinHostPort(wire.Loopback(), "0")
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	b.accept(l, false)
	if self.TCP, err = coordinator.Reachable(l.Addr().(*net.TCPAddr)); err != nil {
		return nil, err
	}
	value, err := json.Marshal(self)
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

// connectPeers dials the lower ranks and waits until the higher ranks have dialled.
func (b *bootstrap) connectPeers(ctx context.Context, addrs []address) error {
	rank := b.group.cfg.Rank
	type dialled struct {
		peer *peerConn
		err  error
	}
	results, dials := make(chan dialled), make(chan struct{}, maxDials)
	for i := range rank {
		peer := rank - 1 - i // do not start with rank 0, which all others would dial at once
		b.wg.Go(func() {
			select {
			case dials <- struct{}{}:
			case <-b.done:
				return
			}
			l, err := b.dialPeer(ctx, peer, addrs[rank], addrs[peer])
			<-dials
			select {
			case results <- dialled{l, err}:
			case <-b.done:
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
			b.peers[d.peer.peer] = d.peer
		case l := <-b.incoming:
			b.peers[l.peer] = l
		case <-ctx.Done():
			var missing []int
			for peer, l := range b.peers {
				if l == nil && peer != rank {
					missing = append(missing, peer)
				}
			}
			// The rank that reports first counts as the culprit: the one that lacks most peers, else the highest.
			size := len(addrs)
			b.awaitReport(lateTime/time.Duration(1+len(missing)) + lateTime/10*time.Duration(size-rank)/time.Duration(size))
			return fmt.Errorf("no connection with %s: %w", rootcause.Ranks(missing), context.Cause(ctx))
		}
	}
	return nil
}

// lateTime is how long a rank waits, after the timeout, for the report of a rank that knows more.
const lateTime = 500 * time.Millisecond

// awaitReport waits until the group has failed, at most for the time d.
func (b *bootstrap) awaitReport(d time.Duration) {
	select {
	case <-b.group.cfg.Control.Failed():
	case <-time.After(d):
	}
}

// exchangeSharing returns, for every rank, the ranks that share memory with it, including itself.
// When it returns, all ranks are connected.
func (b *bootstrap) exchangeSharing(ctx context.Context) ([][]int, error) {
	g := b.group
	var mine []int
	for r, l := range b.peers {
		if l == nil || l.region != nil {
			mine = append(mine, r)
		}
	}
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	values, err := g.cfg.Control.Gather(ctx, "host/sharing", value)
	if err != nil {
		b.awaitReport(lateTime) // of the ranks that lack connections: their time is over too
		return nil, err
	}
	sharing := make([][]int, g.cfg.Size)
	for r, v := range values {
		if err := json.Unmarshal(v, &sharing[r]); err != nil {
			return nil, fmt.Errorf("reading which ranks share memory with rank %d: %w", r, err)
		}
		if slices.ContainsFunc(sharing[r], func(peer int) bool { return peer < 0 || peer >= g.cfg.Size }) {
			return nil, fmt.Errorf("rank %d shares memory with ranks %v, want 0 to %d", r, sharing[r], g.cfg.Size-1)
		}
	}
	return sharing, nil
}
