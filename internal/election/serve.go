package election

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/goddp/goddp/internal/wire"
)

// Serve answers the requests of golaunch, the process that has called Start, until the input in ends. golaunch has
// then ended or does not need the election any more, so Serve resigns. Serve also resigns if golaunch sends no
// heartbeats, because a golaunch that is stopped cannot host.
func Serve(ctx context.Context, in io.Reader, out io.Writer, open func(context.Context, Options) (Election, error)) error {
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{out: out, open: open}
	defer s.close(ctx)
	requests := make(chan request)
	failed := make(chan error, 1)
	silence := time.NewTimer(0)
	silence.Stop()
	go func() { // ends with in
		defer cancel() // also ends the request that is being answered
		buffered := bufio.NewReader(in)
		var limit time.Duration // 0 before Open
		for {
			var r request
			if err := wire.Decode(buffered, maxMessage, &r); err != nil {
				failed <- err
				return
			}
			if r.Open != nil {
				limit = silenceLimit(r.Open)
			}
			if limit > 0 {
				silence.Reset(limit)
			}
			if r.Beat {
				_ = s.respond(response{Beat: true}) // if it fails, golaunch has ended
				continue
			}
			select {
			case requests <- r:
			case <-serving.Done():
				return
			}
		}
	}()
	for {
		select {
		case r := <-requests:
			if err := s.respond(s.answer(serving, r)); err != nil {
				return err
			}
		case <-silence.C:
			if s.term != nil {
				_ = s.resign(ctx, false) // if it fails, the leases expire
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// server is the state of Serve.
type server struct {
	open     func(context.Context, Options) (Election, error)
	election Election
	term     Term
	watchers sync.WaitGroup

	mu  sync.Mutex // guards out
	out io.Writer
}

func (s *server) respond(r response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.out.Write(wire.Encode(r))
	return err
}

func (s *server) answer(ctx context.Context, r request) (answer response) {
	var err error
	switch {
	case r.Open != nil:
		s.election, err = s.open(ctx, *r.Open)
	case s.election == nil:
		err = errors.New("the election is not open")
	case r.Elect != nil:
		if answer.Host, s.term, err = s.election.Elect(ctx, r.Elect.Addr, r.Elect.Dead); err == nil && s.term != nil {
			answer.Elected, answer.State = true, s.term.State()
			expired := s.term.Over()
			s.watchers.Go(func() { // ends when the term does
				<-expired
				_ = s.respond(response{Expired: true}) // if it fails, golaunch has ended
			})
		}
	case s.term == nil:
		err = ErrOver
	case r.Save != nil:
		err = s.term.Save(ctx, *r.Save)
	case r.Resign != nil:
		err = s.resign(context.WithoutCancel(ctx), r.Resign.Ended)
	}
	if err != nil {
		answer.Error, answer.IsOver, answer.JobEnded = err.Error(), errors.Is(err, ErrOver), errors.Is(err, ErrJobEnded)
	}
	return answer
}

// resign ends the term. When it returns, golaunch has been told that the term is over.
func (s *server) resign(ctx context.Context, jobEnded bool) error {
	err := s.term.Resign(ctx, jobEnded)
	s.term = nil
	s.watchers.Wait()
	return err
}

func (s *server) close(ctx context.Context) {
	if s.term != nil {
		_ = s.term.Resign(ctx, false) // if it fails, the leases expire
	}
	if s.election != nil {
		_ = s.election.Close()
	}
	s.watchers.Wait()
}
