package client

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// fileScript is a daemon that answers file calls as a test says.
type fileScript struct {
	agboxv1.UnimplementedFileServiceServer
	stat func(*agboxv1.StatFileRequest) (*agboxv1.FileInfo, error)
	out  func(*agboxv1.CopyOutRequest, grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error
	in   func(grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error
	put  func(grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error
	read func(*agboxv1.ReadFileRequest, grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error

	watch   func(grpc.ServerStreamingServer[agboxv1.WatchFilesResponse]) error
	compare func(*agboxv1.CompareWorkspaceRequest, grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error
	advance func(grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]) error
}

func (s *fileScript) AdvanceBase(in grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]) error {
	return s.advance(in)
}

func (s *fileScript) CompareWorkspace(in *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
	return s.compare(in, out)
}

func (s *fileScript) Stat(_ context.Context, in *agboxv1.StatFileRequest) (*agboxv1.StatFileResponse, error) {
	info, err := s.stat(in)
	return &agboxv1.StatFileResponse{File: info}, err
}

func (s *fileScript) CopyOut(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
	return s.out(in, out)
}

func (s *fileScript) CopyIn(in grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
	return s.in(in)
}

func (s *fileScript) Write(in grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
	return s.put(in)
}

func (s *fileScript) Read(in *agboxv1.ReadFileRequest, out grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
	return s.read(in, out)
}

func (s *fileScript) Watch(_ *agboxv1.WatchFilesRequest, out grpc.ServerStreamingServer[agboxv1.WatchFilesResponse]) error {
	return s.watch(out)
}

// serveFiles serves a script; cut breaks all connections.
func serveFiles(t *testing.T, s *fileScript, opts ...Option) (c *Client, cut func()) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "d.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	cutting := &cutter{Listener: listener}
	server := grpc.NewServer()
	agboxv1.RegisterFileServiceServer(server, s)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(cutting) })
	t.Cleanup(func() { server.Stop(); served.Wait() })
	c, err = New(append([]Option{WithSocket(socket)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, cutting.cut
}

func isFile(*agboxv1.StatFileRequest) (*agboxv1.FileInfo, error) {
	return &agboxv1.FileInfo{Type: agboxv1.FileType_FILE_TYPE_REGULAR}, nil
}

func isDir(in *agboxv1.StatFileRequest) (*agboxv1.FileInfo, error) {
	return &agboxv1.FileInfo{Type: agboxv1.FileType_FILE_TYPE_DIRECTORY, RealPath: in.GetPath()}, nil
}

func tarred(t *testing.T, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, 3
		}
		h.Mode = 0o6755
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, "new"[:h.Size])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAHostileSandboxWritesNothingOutsideTheDestination(t *testing.T) {
	link := func(name, to string, kind byte) *tar.Header {
		return &tar.Header{Name: name, Linkname: to, Typeflag: kind}
	}
	for name, entries := range map[string][]*tar.Header{
		"dots":                     {{Name: "copy/../../outside/new"}},
		"dots at the beginning":    {{Name: "../outside/new"}},
		"absolute":                 {{Name: "/outside/new"}},
		"beside the destination":   {{Name: "copy"}, {Name: ".bashrc"}},
		"through a symbolic link":  {link("copy", "../outside", tar.TypeSymlink), {Name: "copy/new"}},
		"through a link below":     {{Name: "copy/", Typeflag: tar.TypeDir}, link("copy/l", "../../outside", tar.TypeSymlink), {Name: "copy/l/new"}},
		"hard link out":            {link("copy", "../outside/secret", tar.TypeLink), {Name: "copy"}},
		"hard link beside":         {link("copy", "mine", tar.TypeLink), {Name: "copy"}},
		"replacing what is beside": {{Name: "mine"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			here := filepath.Join(root, "here")
			for _, dir := range []string{here, filepath.Join(root, "outside")} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range []string{"outside/secret", "here/mine"} {
				if err := os.WriteFile(filepath.Join(root, file), []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			raw := tarred(t, entries...)
			c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(_ *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
				return out.Send(&agboxv1.CopyOutResponse{Data: raw})
			}})
			_, err := c.CopyFrom(t.Context(), "box", "/copy", filepath.Join(here, "copy"), CopyOptions{})
			var e *Error
			if !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_ARCHIVE_REFUSED.String() || !strings.HasSuffix(e.Message, ".") {
				t.Errorf("the error is %v", err)
			}
			var found []string
			_ = filepath.Walk(root, func(p string, st os.FileInfo, _ error) error {
				rel, _ := filepath.Rel(root, p)
				if strings.HasPrefix(rel, "here/copy") {
					return nil
				}
				if st.Mode().IsRegular() {
					raw, _ := os.ReadFile(p)
					rel += "=" + string(raw)
				}
				found = append(found, rel)
				return nil
			})
			if got := strings.Join(found, " "); got != ". here here/mine=old outside outside/secret=old" {
				t.Errorf("there is now %s", got)
			}
		})
	}
}

func TestACopyBeginsAgainAfterTheDaemonWasAway(t *testing.T) {
	raw := tarred(t, &tar.Header{Name: "copy"})
	var cut func()
	var tries atomic.Int32
	script := &fileScript{stat: isFile, out: func(_ *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
		if tries.Add(1) == 1 {
			_ = out.Send(&agboxv1.CopyOutResponse{Data: raw[:600]})
			cut()
			return nil
		}
		return out.Send(&agboxv1.CopyOutResponse{Data: raw})
	}}
	var c *Client
	c, cut = serveFiles(t, script)
	to := filepath.Join(t.TempDir(), "copy")
	got, err := c.CopyFrom(t.Context(), "box", "/copy", to, CopyOptions{})
	if err != nil || tries.Load() != 2 || got.Files != 1 {
		t.Fatalf("%v after %d tries, %+v", err, tries.Load(), got)
	}
	st, err := os.Stat(to)
	if err != nil || st.Size() != 3 || st.Mode() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestWhatCannotBeReadIsNotTakenForWhole(t *testing.T) {
	finished := make(chan bool, 1)
	c, _ := serveFiles(t, &fileScript{
		in: func(in grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
			return drain(in.Recv, finished)
		},
		put: func(in grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
			return drain(in.Recv, finished)
		},
	})
	for _, broken := range []error{
		errors.New("the disk is broken"),
		io.ErrUnexpectedEOF, // as a body or archive that was cut ends
		fmt.Errorf("the connection is lost: %w", io.EOF),
	} {
		for _, size := range []int{0, 3, 3 * pieceSize} {
			source := func() io.Reader { return io.MultiReader(bytes.NewReader(make([]byte, size)), &failing{broken}) }
			_, copyErr := c.WriteArchive(t.Context(), "box", "/", "", source(), CopyOptions{})
			copied := <-finished
			_, writeErr := c.WriteFile(t.Context(), "box", "/f", source(), WriteOptions{})
			written := <-finished
			if !errors.Is(copyErr, broken) || !errors.Is(writeErr, broken) {
				t.Errorf("%v after %d bytes: the copy says %v, the write %v", broken, size, copyErr, writeErr)
			}
			if copied || written {
				t.Errorf("%v after %d bytes: the daemon saw an end in order: of the copy %v, of the write %v", broken, size, copied, written)
			}
		}
	}
}

// drain receives everything and reports whether the stream ended normally.
func drain[M any](recv func() (M, error), finished chan<- bool) error {
	for {
		if _, err := recv(); err != nil {
			finished <- errors.Is(err, io.EOF)
			return err
		}
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func TestAFileIsWrittenAgainFromItsBeginning(t *testing.T) {
	var cut func()
	var mu sync.Mutex // guards tries and got
	tries, got := 0, ""
	seen := func() (int, string) {
		mu.Lock()
		defer mu.Unlock()
		n, text := tries, got
		tries = 0
		return n, text
	}
	script := &fileScript{put: func(in grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
		mu.Lock()
		tries++
		first := tries == 1
		got = ""
		mu.Unlock()
		for {
			m, err := in.Recv()
			if errors.Is(err, io.EOF) {
				return in.SendAndClose(&agboxv1.WriteFileResponse{})
			}
			if err != nil {
				return err
			}
			mu.Lock()
			got += string(m.GetData())
			mu.Unlock()
			if first && len(m.GetData()) > 0 {
				cut()
				return nil
			}
		}
	}}
	var c *Client
	c, cut = serveFiles(t, script)
	_, err := c.WriteFile(t.Context(), "box", "/f", strings.NewReader("content"), WriteOptions{})
	if n, text := seen(); err != nil || text != "content" || n != 2 {
		t.Errorf("%q after %d tries, %v", text, n, err)
	}
	// A call is not repeated if it may have created something or its source cannot be
	// read again.
	_, err = c.WriteFile(t.Context(), "box", "/f", strings.NewReader("content"), WriteOptions{CreateOnly: true})
	if n, _ := seen(); err == nil || n != 1 {
		t.Errorf("create-only: %v after %d tries", err, n)
	}
	_, err = c.WriteFile(t.Context(), "box", "/f", io.MultiReader(strings.NewReader("content")), WriteOptions{})
	if n, _ := seen(); err == nil || n != 1 {
		t.Errorf("a pipe: %v after %d tries", err, n)
	}
}

// A daemon may stop when everything is written and only its answer is missing.
func TestAPipeIsNotWrittenAgainFromItsMiddle(t *testing.T) {
	var tries atomic.Int32
	c, _ := serveFiles(t, &fileScript{put: func(in grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
		for {
			if _, err := in.Recv(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
		}
		if tries.Add(1) == 1 {
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		return in.SendAndClose(&agboxv1.WriteFileResponse{})
	}})
	_, err := c.WriteFile(t.Context(), "box", "/f", io.MultiReader(strings.NewReader("content")), WriteOptions{})
	if !errors.Is(err, ErrDaemonUnreachable) || tries.Load() != 1 {
		t.Errorf("%v after %d tries", err, tries.Load())
	}
}

func TestAReadGoesOnWhereItWasIfTheFileIsTheSame(t *testing.T) {
	for _, changes := range []bool{false, true} {
		var cut func()
		var inode atomic.Uint64
		inode.Store(1)
		script := &fileScript{read: func(in *agboxv1.ReadFileRequest, out grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
			_ = out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_File{File: &agboxv1.FileInfo{Inode: inode.Load()}}})
			if in.GetOffset() == 0 {
				_ = out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: []byte("first ")}})
				<-out.Context().Done() // the reader breaks the connection
				return nil
			}
			return out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: []byte("second")[in.GetOffset()-6:]}})
		}}
		var c *Client
		c, cut = serveFiles(t, script)
		w := &cuttingWriter{cut: func() {
			if changes {
				inode.Store(2)
			}
			cut()
		}}
		err := c.ReadFile(t.Context(), "box", "/f", 0, 0, w, FileOptions{})
		if !changes && (err != nil || w.String() != "first second") {
			t.Errorf("%q, %v", w, err)
		}
		if changes && (err == nil || w.String() != "first ") {
			t.Errorf("a changed file: %q, %v", w, err)
		}
	}
}

// The pauses after this many losses in a row would exceed the bound. One pause does not,
// even on the slowest machine.
const (
	losses    = 100
	lossBound = 5 * time.Second
)

func TestAWatchOutlivesAnyNumberOfDaemons(t *testing.T) {
	var tries atomic.Int32
	c, _ := serveFiles(t, &fileScript{watch: func(out grpc.ServerStreamingServer[agboxv1.WatchFilesResponse]) error {
		_ = out.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Watching{Watching: true}})
		if tries.Add(1) <= losses {
			return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		return nil
	}}, WithReconnect(lossBound))
	told := 0
	for _, err := range c.WatchFiles(t.Context(), "box", "/", false, FileOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		told++
	}
	if told != losses+1 {
		t.Errorf("told %d times that it watches, want %d", told, losses+1)
	}
}

func TestAReadOutlivesAnyNumberOfDaemons(t *testing.T) {
	c, _ := serveFiles(t, &fileScript{read: func(in *agboxv1.ReadFileRequest, out grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
		_ = out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_File{File: &agboxv1.FileInfo{Inode: 1}}})
		if in.GetOffset() == losses {
			return nil
		}
		_ = out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: []byte("x")}})
		return reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
	}}, WithReconnect(lossBound))
	var got bytes.Buffer
	if err := c.ReadFile(t.Context(), "box", "/f", 0, 0, &got, FileOptions{}); err != nil || got.Len() != losses {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
}

// cuttingWriter breaks the connection after the first write.
type cuttingWriter struct {
	bytes.Buffer
	cut func()
}

func (w *cuttingWriter) Write(p []byte) (int, error) {
	if w.Len() == 0 {
		w.cut()
	}
	return w.Buffer.Write(p)
}

func TestACopyReplacesNoDeviceNorFIFO(t *testing.T) {
	raw := tarred(t, &tar.Header{Name: "fifo"})
	var asked atomic.Int32
	c, _ := serveFiles(t, &fileScript{
		stat: func(in *agboxv1.StatFileRequest) (*agboxv1.FileInfo, error) {
			if in.GetPath() == "/dev/null" {
				return &agboxv1.FileInfo{Type: agboxv1.FileType_FILE_TYPE_DEVICE, RealPath: in.GetPath()}, nil
			}
			return isFile(in)
		},
		out: func(_ *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			asked.Add(1)
			return out.Send(&agboxv1.CopyOutResponse{Data: raw})
		},
		in: func(in grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
			asked.Add(1)
			return in.SendAndClose(&agboxv1.CopyInResponse{})
		},
	})
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.WriteFile(file, nil, 0o600), os.Symlink(fifo, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for what, copying := range map[string]func() (Copied, error){
		"out": func() (Copied, error) { return c.CopyFrom(t.Context(), "box", "/f", fifo, CopyOptions{}) },
		"out over a link to it": func() (Copied, error) {
			return c.CopyFrom(t.Context(), "box", "/f", filepath.Join(dir, "link"), CopyOptions{})
		},
		"in": func() (Copied, error) { return c.CopyTo(t.Context(), file, "box", "/dev/null", CopyOptions{}) },
		"between": func() (Copied, error) {
			return c.CopyBetween(t.Context(), "box", "/f", "box", "/dev/null", CopyOptions{})
		},
	} {
		var e *Error
		if _, err := copying(); !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_FILE_NOT_REGULAR.String() {
			t.Errorf("%s: %v", what, err)
		}
	}
	if st, err := os.Lstat(fifo); err != nil || st.Mode()&os.ModeNamedPipe == 0 || asked.Load() != 0 {
		t.Errorf("%v, %v after %d copies", st, err, asked.Load())
	}
}

// TestACopyReplacesNoFileOfADescriptor: who writes to /dev/stdout means what it is redirected
// to, and may have opened that to append to it.
func TestACopyReplacesNoFileOfADescriptor(t *testing.T) {
	c, _ := serveFiles(t, &fileScript{
		stat: isFile,
		out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			return out.Send(&agboxv1.CopyOutResponse{Data: tarred(t, &tar.Header{Name: in.GetName(), Mode: 0o600})})
		},
	})
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	number := strconv.Itoa(int(file.Fd()))
	link, again, ordinary := filepath.Join(dir, "link"), filepath.Join(dir, "again"), filepath.Join(dir, "ordinary")
	if err := errors.Join(os.Symlink("/dev/fd/"+number, link), os.Symlink("link", again), os.Symlink("file", ordinary)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"/dev/fd/" + number, "/proc/self/fd/" + number, "/proc/thread-self/fd/" + number, "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + number, link, again} {
		var e *Error
		if _, err := c.CopyFrom(t.Context(), "box", "/f", to, CopyOptions{}); !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_FILE_NOT_REGULAR.String() {
			t.Errorf("to %s: %v", to, err)
		}
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "before" {
		t.Errorf("the file has %q (%v)", got, err)
	}
	for _, to := range []string{ordinary, "/proc/self/cwd/../" + filepath.Base(ordinary)} {
		if at, err := local(to); err != nil || at.special {
			t.Errorf("%s is %+v (%v)", to, at, err)
		}
	}
}

func TestADirectoryIsNotCopiedIntoItself(t *testing.T) {
	var copies atomic.Int32
	c, _ := serveFiles(t, &fileScript{
		stat: func(in *agboxv1.StatFileRequest) (*agboxv1.FileInfo, error) {
			switch in.GetPath() {
			case "/new", "/a/new", "/ab/new":
				return nil, reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "It does not exist.")
			case "/link":
				return &agboxv1.FileInfo{Type: agboxv1.FileType_FILE_TYPE_DIRECTORY, RealPath: "/a/b"}, nil
			}
			return isDir(in)
		},
		out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			copies.Add(1)
			return nil
		},
		in: func(in grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
			return in.SendAndClose(&agboxv1.CopyInResponse{})
		},
	})
	for to, fine := range map[string]bool{
		"/a": false, "/a/b": false, "/a/new": false, "/link": false, "/new": true, "/ab/new": true, "/ab": true,
	} {
		copies.Store(0)
		_, err := c.CopyBetween(t.Context(), "box", "/a", "box", to, CopyOptions{})
		if (err == nil) != fine || (copies.Load() > 0) != fine || !fine && !errors.Is(err, ErrInvalid) {
			t.Errorf("to %s: %v", to, err)
		}
	}
}

func TestAFileIsCopiedInWhoseNameIsNoText(t *testing.T) {
	name := "caf\xe9"
	var got atomic.Value
	c, _ := serveFiles(t, &fileScript{stat: isDir, in: func(in grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
		r, w := io.Pipe()
		go func() {
			for {
				m, err := in.Recv()
				if err != nil {
					_ = w.CloseWithError(err) // io.EOF at its end
					return
				}
				_, _ = w.Write(m.GetData())
			}
		}()
		h, err := tar.NewReader(r).Next()
		if err != nil {
			return err
		}
		got.Store(h.Name)
		_, _ = io.Copy(io.Discard, r)
		return in.SendAndClose(&agboxv1.CopyInResponse{Files: 1})
	}})
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CopyTo(t.Context(), file, "box", "/tmp", CopyOptions{}); err != nil || got.Load() != name {
		t.Errorf("%q arrived, %v", got.Load(), err)
	}
}

func TestADirectoryAboveIsCopiedUnderItsOwnName(t *testing.T) {
	var asked *agboxv1.CopyOutRequest
	c, _ := serveFiles(t, &fileScript{
		stat: func(in *agboxv1.StatFileRequest) (*agboxv1.FileInfo, error) {
			return &agboxv1.FileInfo{Type: agboxv1.FileType_FILE_TYPE_DIRECTORY, RealPath: "/work"}, nil
		},
		out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			asked = in
			return out.Send(&agboxv1.CopyOutResponse{Data: tarred(t, &tar.Header{Name: in.GetName() + "/", Typeflag: tar.TypeDir})})
		},
	})
	to := t.TempDir()
	if _, err := c.CopyFrom(t.Context(), "box", "/work/src/..", to, CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(to, "work")); err != nil || !st.IsDir() || asked.GetPath() != "/work/src/.." {
		t.Errorf("%v, %v; asked for %v", st, err, asked)
	}
}

func TestDestinationsOfACopyAreThoseOfCp(t *testing.T) {
	there := func(real string, dir bool) pathInfo { return pathInfo{exists: true, dir: dir, real: real} }
	for _, c := range []struct {
		src    string
		srcDir bool
		dst    string
		at     pathInfo
		want   destination
		code   codes.Code
	}{
		{"a/f", false, "/x", pathInfo{}, destination{"/", "x"}, 0},
		{"a/f", false, "/x/", pathInfo{}, destination{}, codes.NotFound},
		{"a/f", false, "/x", there("/x", true), destination{"/x", "f"}, 0},
		{"a/f", false, "/x/", there("/x", true), destination{"/x", "f"}, 0},
		{"a/f", false, "/l", there("/to/there", false), destination{"/to", "there"}, 0},
		{"a/f", false, "/l/", there("/to/there", false), destination{}, codes.FailedPrecondition},
		{"a/d", true, "/x", pathInfo{}, destination{"/", "x"}, 0},
		{"a/d", true, "/x/", pathInfo{}, destination{"/", "x"}, 0},
		{"a/d/", true, "/x", there("/x", true), destination{"/x", "d"}, 0},
		{"a/d/.", true, "/x", there("/x", true), destination{"/x", "."}, 0},
		{"a/d/.", true, "/x/y", pathInfo{}, destination{"/x", "y"}, 0},
		{".", true, "/x", there("/x", true), destination{"/x", "."}, 0},
		{"a/d", true, "/f", there("/f", false), destination{}, codes.FailedPrecondition},
		{"/", true, "/x", there("/x", true), destination{"/x", "."}, 0},
		{"/", true, "x", pathInfo{}, destination{".", "x"}, 0},
		{"//", true, "/x", there("/x", true), destination{"/x", "."}, 0},
		// The path may have a symbolic link: only the kernel knows its parent.
		{"a/f", false, "/l/../x", pathInfo{}, destination{"/l/..", "x"}, 0},
		{"a/d", true, "/x/./", pathInfo{}, destination{"/", "x"}, 0},
		{"a/d", true, "x/..", pathInfo{}, destination{}, codes.NotFound},
		{"a/f", false, "/dev/null", pathInfo{exists: true, special: true, real: "/dev/null"}, destination{}, codes.FailedPrecondition},
		{"a/d", true, "/dev/null", pathInfo{exists: true, special: true, real: "/dev/null"}, destination{}, codes.FailedPrecondition},
	} {
		got, err := destinationOf(c.src, c.srcDir, c.dst, c.at)
		var e *Error
		if errors.As(err, &e) != (c.code != 0) || e != nil && e.Code != c.code || got != c.want {
			t.Errorf("%s to %s: %v, %v; want %v", c.src, c.dst, got, err, c.want)
		}
	}
}
