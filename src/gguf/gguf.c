typedef int sl_placeholder_gguf;
