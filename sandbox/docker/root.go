package docker

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

const (
	// serverName is the file in the driver's directory with its id in engines.
	serverName  = "server"
	serverBytes = 8
	// rootRepository begins the names of the engine's copies of our root directories.
	// No registry has this name.
	rootRepository = "localhost/sojourn-root-"
	// maxReply bounds what an engine says about an import.
	maxReply = 1 << 20
)

// serverID returns the id of a driver's directory: 16 hexadecimal digits, made when it
// is first opened. A path would not do, because servers that do not see the same files
// can share an engine.
func serverID(dir string) (string, error) {
	path := filepath.Join(dir, serverName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = makeServerID(dir, path); err != nil {
			return "", fmt.Errorf("name driver directory: %w", err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("name driver directory: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if d, err := hex.DecodeString(id); err != nil || len(d) != serverBytes {
		return "", fmt.Errorf("name driver directory: %s is damaged: remove it when no sandbox is left", path)
	}
	return id, nil
}

// makeServerID writes a new id, or reads the one that somebody wrote meanwhile: a file
// with half an id never has the name.
func makeServerID(dir, path string) ([]byte, error) {
	f, err := os.CreateTemp(dir, serverName+"-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	id := make([]byte, serverBytes)
	rand.Read(id) // never fails
	_, err = f.WriteString(hex.EncodeToString(id) + "\n")
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// prepareRoot makes the engine have the zero-install root, and forgets those of an
// earlier state of the host.
func (l *launcher) prepareRoot(ctx context.Context) error {
	skeleton, err := l.skeletons.For(nil)
	if err != nil {
		return err
	}
	repository := rootRepository + l.server
	l.root = repository + ":" + filepath.Base(skeleton.Dir) + l.variant()
	l.binds = skeleton.Binds
	if _, err := l.engine.ImageInspect(ctx, l.root); cerrdefs.IsNotFound(err) {
		err = l.importRoot(ctx)
		if err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("look for root image: %w", err)
	}
	return l.forgetRoots(ctx, repository)
}

// variant distinguishes roots in which the sandbox's user has a name.
func (l *launcher) variant() string {
	if l.engine.ownRoot() {
		return ""
	}
	return "-" + strconv.Itoa(l.engine.uid) + "-" + strconv.Itoa(unix.Getegid())
}

// forgetRoots removes the driver's other root images. One that a sandbox uses stays.
func (l *launcher) forgetRoots(ctx context.Context, repository string) error {
	r, err := l.engine.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("reference", repository)})
	if err != nil {
		return fmt.Errorf("list root images: %w", err)
	}
	for _, img := range r.Items {
		for _, name := range img.RepoTags {
			if name == l.root || !strings.HasPrefix(name, repository+":") {
				continue
			}
			_, err := l.engine.ImageRemove(ctx, name, client.ImageRemoveOptions{})
			if err != nil && !cerrdefs.IsConflict(err) && !cerrdefs.IsNotFound(err) {
				return fmt.Errorf("remove old root image: %w", err)
			}
		}
	}
	return nil
}

// Uninstall removes the root images from the engine; see sandbox.Uninstaller.
func (d *Driver) Uninstall(ctx context.Context) error {
	d.launcher.root = ""
	return d.launcher.forgetRoots(ctx, rootRepository+d.launcher.server)
}

// importRoot gives the skeleton to the engine as an image.
func (l *launcher) importRoot(ctx context.Context) error {
	skeleton, err := l.skeletons.For(nil)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	var writer sync.WaitGroup
	defer writer.Wait()
	defer r.Close() // ends the writer when the engine gives up
	writer.Go(func() { w.CloseWithError(l.writeRoot(w, skeleton.Dir)) })
	reply, err := l.engine.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, l.root, client.ImageImportOptions{})
	if err != nil {
		return fmt.Errorf("import root image: %w", err)
	}
	defer reply.Close()
	for d := json.NewDecoder(io.LimitReader(reply, maxReply)); ; {
		var m jsonstream.Message
		err := d.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && m.Error != nil:
			err = m.Error
		}
		if err != nil {
			return fmt.Errorf("import root image: %w", err)
		}
	}
}

// writeRoot writes the tree below dir, which is ours, as a tar archive that is the same
// for the same tree. All of it belongs to root.
func (l *launcher) writeRoot(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return l.writeEntry(out, path, name, e)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

func (l *launcher) writeEntry(out *tar.Writer, path, name string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	var content []byte
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if name == "tmp" {
			h.Mode = 0o1777
		}
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(path); err != nil {
			return err
		}
	case 0:
		h.Typeflag = tar.TypeReg
		if content, err = os.ReadFile(path); err != nil {
			return err
		}
		if name == "etc/passwd" {
			content = append(content, l.passwd()...)
		}
		h.Size = int64(len(content))
	default:
		return fmt.Errorf("%s is no file, directory or link", name)
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = out.Write(content)
	return err
}

// passwd names the sandbox's user where it is not root.
func (l *launcher) passwd() string {
	if l.engine.ownRoot() {
		return ""
	}
	return fmt.Sprintf("agent:x:%d:%d:agent:/home/agent:/bin/sh\n", l.engine.uid, unix.Getegid())
}
