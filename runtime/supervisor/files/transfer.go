package files

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// transfer is a transfer in progress. The goroutine that serves its connection owns it.
type transfer struct {
	what string
	path []byte
	work
}

// work is the part that differs between the kinds of transfers.
type work interface {
	// begin opens the files that the transfer needs. Its result is sent to the daemon.
	begin() (*guestv1.FileStat, error)
	// run moves the bytes until all are moved or ctx is done. It also returns errors of
	// the pipe, although they cannot be sent to the daemon.
	run(ctx context.Context, p *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error)
	// close releases everything and removes incomplete files. begin may have failed.
	close()
}

// Serve performs the transfer requested on conn. first yields the bytes that were
// read from conn before. The caller closes conn afterwards.
func (s *Service) Serve(conn *net.UnixConn, first io.Reader) {
	// A panic here must not end PID 1 and with it the sandbox.
	defer func() { _ = recover() }()
	ctx, cancel := context.WithCancel(s.stopping)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // interrupts a blocked read or write
	p := rpc.NewPipe(conn, first)
	if p.Expect(rpc.Preamble) != nil {
		return
	}
	raw, err := p.Word()
	if err != nil {
		return
	}
	req := new(guestv1.TransferRequest)
	if req.UnmarshalVT(raw) != nil {
		return
	}
	t, fail := s.prepare(req)
	if fail != nil {
		_ = reply(p, &guestv1.TransferResponse{Error: fail})
		return
	}
	end, err := s.perform(ctx, t, p, req.GetWatch() != nil)
	if err != nil {
		end = &guestv1.TransferEnd{Error: explain(t.what, t.path, err)}
	}
	if end != nil && reply(p, end) == nil {
		_ = conn.CloseRead() // makes the writes of a daemon that is still sending fail
	}
}

// reply sends a message to the daemon.
func reply(p *rpc.Pipe, m interface{ MarshalVT() ([]byte, error) }) error {
	raw, err := m.MarshalVT()
	if err != nil {
		return err
	}
	return p.SendWord("", raw)
}

// perform runs a transfer. It returns nil if nothing remains to be sent to the daemon.
func (s *Service) perform(ctx context.Context, t *transfer, p *rpc.Pipe, watch bool) (end *guestv1.TransferEnd, err error) {
	if !s.add(watch) {
		return nil, reply(p, &guestv1.TransferResponse{Error: explain(t.what, t.path, errBusy)})
	}
	defer s.remove(watch)
	defer t.close()
	first, err := t.begin()
	if err != nil {
		return nil, reply(p, &guestv1.TransferResponse{Error: explain(t.what, t.path, err)})
	}
	if err := reply(p, &guestv1.TransferResponse{File: first}); err != nil {
		return nil, err
	}
	moved := new(process.BulkMeter)
	defer moved.Close()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the supervisor failed: %v", p)
		}
	}()
	return t.run(ctx, p, moved)
}

// prepare turns a request into a transfer.
func (s *Service) prepare(req *guestv1.TransferRequest) (*transfer, *guestv1.FileError) {
	a, fail := s.actor(req.GetUser())
	if fail != nil {
		return nil, fail
	}
	t := new(transfer)
	var err error
	switch kind := req.GetKind().(type) {
	case *guestv1.TransferRequest_Read:
		t.what, t.path, t.work = "Reading", kind.Read.GetPath(), &reading{actor: a, ReadTransfer: kind.Read, fd: -1}
	case *guestv1.TransferRequest_Write:
		t.what, t.path, t.work = "Writing", kind.Write.GetPath(), &writing{service: s, actor: a, WriteTransfer: kind.Write, dir: -1, fd: -1}
	case *guestv1.TransferRequest_Out:
		t.what, t.path, t.work = "Copying", kind.Out.GetPath(), &packing{actor: a, OutTransfer: kind.Out, dir: -1}
	case *guestv1.TransferRequest_In:
		t.what, t.path, t.work = "Copying to", kind.In.GetPath(), &unpacking{actor: a, InTransfer: kind.In, dir: -1}
	case *guestv1.TransferRequest_Watch:
		t.what, t.path, t.work = "Watching", kind.Watch.GetPath(), newWatching(a, kind.Watch)
	default:
		err = invalid("needs a kind of transfer that this supervisor does not support: create a new sandbox")
	}
	if err == nil {
		_, err = clean(t.path)
	}
	if err != nil {
		return nil, explain(t.what, t.path, err)
	}
	return t, nil
}

func (s *Service) add(watch bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transfers >= maxTransfers || watch && s.watches >= maxWatches {
		return false
	}
	s.transfers++
	if watch {
		s.watches++
	}
	return true
}

func (s *Service) remove(watch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transfers--
	if watch {
		s.watches--
	}
}
