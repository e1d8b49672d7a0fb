package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/runtime/guest"
)

// transfer starts a file transfer.
func (f fileCalls) transfer(ctx context.Context, sandbox string, req *guestv1.TransferRequest) (*guest.Transfer, func(), error) {
	sb, err := f.ledger.FindSandbox(ctx, sandbox)
	if err != nil {
		return nil, nil, err
	}
	return f.files.Transfer(ctx, sb.ID, req)
}

// pull passes every message of a transfer to send.
func (f fileCalls) pull(ctx context.Context, sandbox string, req *guestv1.TransferRequest, begun func(*guestv1.FileStat) error, send func(*guest.Transfer) error) error {
	ctx, cancel := f.life.context(ctx)
	defer cancel()
	t, done, err := f.transfer(ctx, sandbox, req)
	if err != nil {
		return orStopped(ctx, err)
	}
	defer done()
	if err := begun(t.File); err != nil {
		return err
	}
	for {
		switch err := send(t); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return orStopped(ctx, err)
		}
	}
}

// bytes passes all bytes of a transfer to send, which must not keep them after it
// returns.
func (f fileCalls) bytes(ctx context.Context, sandbox string, req *guestv1.TransferRequest, begun func(*guestv1.FileStat) error, send func([]byte) error) error {
	moved := new(process.BulkMeter)
	defer moved.Close()
	return f.pull(ctx, sandbox, req, begun, func(t *guest.Transfer) error {
		chunk, err := t.Next()
		if err != nil {
			return err
		}
		moved.Add(len(chunk))
		return send(chunk)
	})
}

// Read streams a part of a file.
func (f fileCalls) Read(req *agboxv1.ReadFileRequest, stream grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
	return f.bytes(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Read{Read: &guestv1.ReadTransfer{
			Path: []byte(req.GetPath()), Offset: req.GetOffset(), Length: req.GetLength(),
		}},
	}, func(st *guestv1.FileStat) error {
		return stream.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_File{File: fileInfo(st)}})
	}, func(data []byte) error {
		return stream.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: data}})
	})
}

// CopyOut streams a tree.
func (f fileCalls) CopyOut(req *agboxv1.CopyOutRequest, stream grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
	if done, err := f.copyOutStopped(req, stream); done || err != nil {
		return err
	}
	return f.bytes(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Out{Out: &guestv1.OutTransfer{
			Path: []byte(req.GetPath()), Name: []byte(req.GetName()), Follow: req.GetFollow(),
		}},
	}, func(*guestv1.FileStat) error { return nil }, func(data []byte) error {
		return stream.Send(&agboxv1.CopyOutResponse{Data: data})
	})
}

// Watch streams changes.
func (f fileCalls) Watch(req *agboxv1.WatchFilesRequest, stream grpc.ServerStreamingServer[agboxv1.WatchFilesResponse]) error {
	return f.pull(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Watch{Watch: &guestv1.WatchTransfer{
			Path: []byte(req.GetPath()), Recursive: req.GetRecursive(),
		}},
	}, func(*guestv1.FileStat) error {
		return stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Watching{Watching: true}})
	}, func(t *guest.Transfer) error {
		batch, err := t.NextChanges()
		if err != nil {
			return err
		}
		return sendChanges(stream, batch)
	})
}

func sendChanges(stream grpc.ServerStreamingServer[agboxv1.WatchFilesResponse], p *guestv1.WatchBatch) error {
	for _, c := range p.GetChanges() {
		err := stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Change{Change: &agboxv1.FileChange{
			Kind: agboxv1.FileChangeKind(c.GetKind()), Path: text(c.GetPath()), Directory: c.GetDirectory(), Cookie: c.GetCookie(),
		}}})
		if err != nil {
			return err
		}
	}
	if p.GetOverflow() == "" {
		return nil
	}
	return stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Overflow{Overflow: text([]byte(p.GetOverflow()))}})
}

// push sends everything that a client sends to a transfer, and finishes it when the
// client has closed its side. If the client breaks off, the transfer stays unfinished.
func push(t *guest.Transfer, recv func() ([]byte, error)) (*guestv1.TransferEnd, error) {
	moved := new(process.BulkMeter)
	defer moved.Close()
	for {
		data, err := recv()
		if errors.Is(err, io.EOF) {
			return t.Finish()
		}
		if err != nil {
			return nil, err
		}
		if err := t.Push(data); err != nil {
			return nil, err
		}
		moved.Add(len(data))
	}
}

// Write replaces a file.
func (f fileCalls) Write(stream grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("open: the first message says what to write.")
	}
	ctx := stream.Context()
	t, done, err := f.transfer(ctx, open.GetSandboxId(), &guestv1.TransferRequest{
		User: open.GetUser(),
		Kind: &guestv1.TransferRequest_Write{Write: &guestv1.WriteTransfer{
			Path: []byte(open.GetPath()), Mode: open.Mode, Uid: open.Uid, Gid: open.Gid,
			CreateOnly: open.GetCreateOnly(), Parents: open.GetParents(), ExpectedSha256: open.GetExpectedSha256(),
		}},
	})
	if err != nil {
		return err
	}
	defer done()
	reply, err := push(t, func() ([]byte, error) {
		m, err := stream.Recv()
		if m.GetOpen() != nil {
			return nil, invalid("open: only the first message has it.")
		}
		return m.GetData(), err
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agboxv1.WriteFileResponse{File: fileInfo(reply.GetFile())})
}

// CopyIn unpacks a tree.
func (f fileCalls) CopyIn(stream grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("open: the first message says where to unpack.")
	}
	ctx := stream.Context()
	t, done, err := f.transfer(ctx, open.GetSandboxId(), &guestv1.TransferRequest{
		User: open.GetUser(),
		Kind: &guestv1.TransferRequest_In{In: &guestv1.InTransfer{
			Path: []byte(open.GetPath()), Only: []byte(open.GetOnly()), NoOwner: open.GetNoOwner(),
			Special: guestv1.Special(open.GetSpecial()),
		}},
	})
	if err != nil {
		return err
	}
	defer done()
	reply, err := push(t, func() ([]byte, error) {
		m, err := stream.Recv()
		if m.GetOpen() != nil {
			return nil, invalid("open: only the first message has it.")
		}
		return m.GetData(), err
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agboxv1.CopyInResponse{Files: reply.GetFiles(), Bytes: reply.GetBytes(), Skipped: reply.GetSkipped()})
}
