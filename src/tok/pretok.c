typedef int sl_placeholder_pretok;
