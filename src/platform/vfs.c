typedef int sl_placeholder_vfs;
